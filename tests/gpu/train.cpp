// Training steps of GPT-2 124M and of a 1.3B model on one GPU, bf16, beside the rate of a large matrix product.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <optional>

#include "parallel/train/training.h"
#include "runtime/comm/launch.h"
#include "runtime/data/dataset.h"
#include "runtime/device/cuda/facts.h"
#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

struct Model {
  const char* name;
  int64_t layers, width, heads, length, micro_batch;
};
constexpr Model kModels[] = {{"124M, T 1024, B 32", 12, 768, 12, 1024, 32},
                             {"1.3B, T 2048, B 8", 24, 2048, 16, 2048, 8}};
constexpr Model kTinyModel = {"tiny, T 16, B 2", 1, 64, 1, 16, 2};

TrainOptions options_of(const Model& model, bool tiny) {
  TrainOptions options;
  options.num_layers = model.layers;
  options.hidden_size = model.width;
  options.num_attention_heads = model.heads;
  options.seq_length = model.length;
  options.tokenizer_type = "NullTokenizer";
  options.vocab_size = tiny ? 61 : 50257;
  options.micro_batch_size = model.micro_batch;
  options.global_batch_size = model.micro_batch;
  options.train_iters = 1000;
  options.lr = 1e-4;
  options.mock_data = true;
  options.bf16 = true;
  return resolve_options(options, 1);
}

// The dense bf16 rate of the data sheet, by generation; 0: not known.
double data_sheet_rate() {
  const RankFacts facts = gather_rank_facts({}, {});
  return facts.compute_major == 8 && facts.compute_minor == 0 ? 312e12 : facts.compute_major == 9 ? 989e12 : 0;
}

void train(const Model& model, bool tiny, double limit, RankContext& rank, StepReport& report) {
  const TrainOptions options = options_of(model, tiny);
  Training training(rank, options);
  const MockSource source("gpu_check", {.seq_length = options.seq_length, .vocab_size = options.vocab_size});
  for (int step = 0; step < (tiny ? 0 : 3); ++step) {  // the first ones load kernels and choose algorithms
    train_step(training, source);
  }
  const int num_steps = tiny ? 2 : 20;
  const int64_t allocations = rank.device.num_allocations();
  StepResult last;
  double submit_seconds = 0;  // what the host needs to put a step on the stream; more than the step is a launch gap
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < num_steps; ++step) {  // as a run does: the host reads results one step late
    const auto begin = std::chrono::steady_clock::now();
    submit_step(training, source);
    submit_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / num_steps;
    while (training.results.num_pending() > result_lag(training)) {
      last = take_result(training);
    }
  }
  while (training.results.num_pending() > 0) {
    last = take_result(training);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / num_steps;
  if (!last.finite || !(last.loss < 12)) {
    report.fail(fmt::format("{}: the loss is {}", model.name, last.loss));
  }
  if (rank.device.num_allocations() != allocations) {
    report.fail(fmt::format("{}: {} allocations in {} steps", model.name, rank.device.num_allocations() - allocations,
                            num_steps));
  }
  const auto tokens = static_cast<double>(options.global_batch_size * options.seq_length);
  const double rate = tokens *
                      static_cast<double>(flops_per_token(training.config, options.seq_length, FlopFormula::kCausal)) /
                      seconds;
  const double peak = data_sheet_rate();
  report.add({model.name, Cell(seconds * 1e3, 2), Cell(submit_seconds * 1e3, 2), Cell(tokens / seconds, 0),
              rate * 1e-12, limit * 1e-12, Cell(rate / limit, 3), peak > 0 ? Cell(rate / peak, 3) : Cell("-"),
              Cell(static_cast<double>(rank.device.allocated_bytes()) / 1e9, 2)});
}

}  // namespace

void check_train(bool tiny, StepReport& report) {
  std::optional<Bench> bench(std::in_place, tiny);
  const double limit = bench->matmul_rate();
  bench.reset();  // its memory
  report.begin(
      "training steps, bf16, one GPU; FLOPs of the model with the causal half of attention",
      {"model", "ms a step", "host ms", "tokens/s", "TFLOP/s", "8192^3 TFLOP/s", "ratio", "MFU (data sheet)", "GB"});
  ThreadRankOptions ranks;
  ranks.timeout_seconds = 300;
  ranks.device = {.kind = DeviceKind::kCuda, .backend = DeviceBackend::kStaged, .gpu_index = 0};
  for (const Model& model : kModels) {
    run_thread_ranks(
        1, [&](RankContext& rank) { train(tiny ? kTinyModel : model, tiny, limit, rank, report); }, ranks);
    if (tiny) {
      break;
    }
  }
}

}  // namespace ashlar
