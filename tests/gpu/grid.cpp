// Whole training steps of a small model, ranks as threads: eight of them on one GPU over the staged communicator, or
// one over NCCL. Their losses beside those of the same grid on the CPU.
#include <fmt/format.h>

#include <cmath>
#include <mutex>

#include "parallel/train/training.h"
#include "runtime/comm/launch.h"
#include "runtime/data/dataset.h"
#include "tests/gpu/steps.h"

namespace ashlar {
namespace {

struct Grid {
  int tensor, pipeline, data;
  int num_ranks() const { return tensor * pipeline * data; }
};

TrainOptions small_model(const Grid& grid, bool tiny) {
  TrainOptions options;
  options.num_layers = 2;
  options.hidden_size = tiny ? 32 : 256;
  options.num_attention_heads = tiny ? 2 : 4;
  options.seq_length = tiny ? 16 : 128;
  options.tokenizer_type = "NullTokenizer";
  options.vocab_size = tiny ? 61 : 1021;
  options.tensor_model_parallel_size = grid.tensor;
  options.pipeline_model_parallel_size = grid.pipeline;
  options.micro_batch_size = 1;
  options.global_batch_size = 4;
  options.train_iters = 100;
  options.lr = 1e-3;
  options.mock_data = true;
  return options;
}

std::vector<double> losses_of(const Grid& grid, const DeviceRequest& device, int num_steps, bool tiny) {
  std::vector<double> losses;
  std::mutex mutex;
  const auto train = [&](RankContext& rank) {
    const TrainOptions options = resolve_options(small_model(grid, tiny), grid.num_ranks());
    Training training(rank, options);
    const MockSource source("gpu_check", {.seq_length = options.seq_length, .vocab_size = options.vocab_size});
    for (int step = 0; step < num_steps; ++step) {
      const StepResult result = train_step(training, source);
      const std::lock_guard lock(mutex);
      if (rank.world.rank() == 0) {
        losses.push_back(result.loss);
      }
    }
  };
  ThreadRankOptions ranks;
  ranks.timeout_seconds = 300;  // the first step of eight ranks on one GPU loads its kernels eight times
  ranks.device = device;
  run_thread_ranks(grid.num_ranks(), train, ranks);
  return losses;
}

void compare(const std::string& what, const Grid& grid, const DeviceRequest& device, bool tiny, StepReport& report) {
  const int num_steps = tiny ? 2 : 10;
  const std::vector<double> cpu = losses_of(grid, {}, num_steps, tiny);
  const std::vector<double> gpu = losses_of(grid, device, num_steps, tiny);
  const std::vector<double> again = losses_of(grid, device, num_steps, tiny);
  report.begin(what, {"step", "loss on the CPU", "loss on the GPU", "relative difference"});
  for (size_t i = 0; i < cpu.size(); ++i) {
    const double apart = std::abs(gpu[i] - cpu[i]) / std::abs(cpu[i]);
    report.add({fmt::format("{}", i + 1), Cell(cpu[i], 3), Cell(gpu[i], 3), Cell(apart, 4)});
    if (!(apart <= 1e-5)) {
      report.fail(fmt::format("step {}: losses are {:.2e} apart, at most 1e-5", i + 1, apart));
    }
  }
  if (again != gpu) {
    report.fail("a second run gave other bits");
  }
}

}  // namespace

void check_grid(bool tiny, StepReport& report) {
  compare("8 ranks (tensor 2, pipeline 2, data 2) on one GPU, staged, fp32", {2, 2, 2},
          {.kind = DeviceKind::kCuda, .backend = DeviceBackend::kStaged, .gpu_index = 0}, tiny, report);
}

void check_nccl(bool tiny, StepReport& report) {
  compare("1 rank over NCCL, fp32", {1, 1, 1},
          {.kind = DeviceKind::kCuda, .backend = DeviceBackend::kNccl, .gpu_index = 0}, tiny, report);
}

}  // namespace ashlar
