// bench_train: GPT-2 124M training steps beside the limits of this machine, measured in the same run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>

#include "examples/bench_train/bench_gpu.h"
#include "examples/bench_train/compare.h"
#include "examples/bench_train/model_sizes.h"
#include "examples/bench_train/op_clock.h"
#include "parallel/train/start_device.h"
#include "parallel/train/training.h"
#include "runtime/comm/device_world.h"
#include "runtime/data/dataset.h"

namespace ashlar {
namespace {

// A line of /proc/self/status in bytes: "VmRSS" now, "VmHWM" the most so far.
double status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) {
      return std::stod(line.substr(name.size() + 1)) * 1024;
    }
  }
  throw Error(ErrorCode::kInternal, "/proc/self/status has no " + name);
}

// FLOP/s of c = a b with 1024 x 1024 matrices: the best of three, so that a stolen time slice does not lower the limit.
class Reference {
 public:
  explicit Reference(RankContext& rank) : stream_(rank.device.create_stream()) {
    for (Tensor* x : {&a_, &b_, &c_}) {
      *x = Tensor(rank.device, DType::kF32, {kSize, kSize}, "reference");
      std::generate_n(x->as<float>(), kSize * kSize, [n = 0u]() mutable { return float(n++ * 2654435761u) * 2e-10f; });
    }
    rate();
  }
  double rate() {
    double best = 1e30;
    for (int run = 0; run < 3; ++run) {
      const double start = seconds_now();
      kernels::matmul(c_, a_, kernels::Transpose::kNo, b_, kernels::Transpose::kNo, kernels::Write::kOverwrite,
                      *stream_);
      stream_->synchronize();
      best = std::min(best, seconds_now() - start);
    }
    return 2.0 * kSize * kSize * kSize / best;
  }

 private:
  static constexpr int64_t kSize = 1024;
  std::unique_ptr<Stream> stream_;
  Tensor a_, b_, c_;
};

int bench_one_rank(RankContext& rank, const BenchOptions& bench) {
  const double bytes_at_start = status_bytes("VmRSS");
  auto& device = dynamic_cast<CpuDevice&>(rank.device);
  Reference reference(rank);
  OpClock clock;
  device.set_observer(&clock);
  const TrainOptions options = train_options(bench, 1);
  Training training(rank, options);
  const MockSource source = source_of(options);
  const double tokens = static_cast<double>(options.global_batch_size * options.seq_length);
  const double flops =
      tokens * static_cast<double>(flops_per_token(training.config, options.seq_length, FlopFormula::kCausal));
  std::cout << fmt::format("GPT-2 124M ({} parameters), T={}, micro-batch {}, {} micro-batches a step, 1 rank\n",
                           count_parameters(training.config), options.seq_length, options.micro_batch_size,
                           options.num_microbatches);

  warm_up(training, source);
  clock.reset();
  std::vector<double> ratios, rates, limits, times;
  for (int step = 0; step < bench.steps; ++step) {
    const double limit = reference.rate();
    const double start = seconds_now();
    require_update(train_step(training, source));
    times.push_back(seconds_now() - start);
    limits.push_back(limit);
    rates.push_back(flops / times.back());
    ratios.push_back(rates.back() / limit);
  }
  const double step_seconds = median(times);
  double all_seconds = 0;
  for (const double seconds : times) {
    all_seconds += seconds;
  }
  std::cout << fmt::format("step {:.3f} s, {:.0f} tokens/s\nwhere the time went (mean of {} steps):\n", step_seconds,
                           tokens / step_seconds, bench.steps);
  const auto line = [&](const std::string& kind, double seconds) {
    std::cout << fmt::format("  {:22} {:8.1f} ms  {:5.1f} %\n", kind, seconds / bench.steps * 1e3,
                             100 * seconds / all_seconds);
  };
  std::vector<std::pair<std::string, double>> kinds(clock.seconds().begin(), clock.seconds().end());
  std::sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [kind, seconds] : kinds) {
    line(kind, seconds);
  }
  line("outside kernels", all_seconds - clock.total());

  const double state = static_cast<double>(training.store.value_bytes() + training.store.grad_bytes() +
                                           training.optimizer.state_bytes());
  const double saved = static_cast<double>(training.chunks.front()->saved_bytes(batch_shape(options)));
  const double peak = status_bytes("VmHWM") - bytes_at_start;
  constexpr double kMB = 1e6;
  std::cout << fmt::format(
      "memory: peak resident {:.0f} MB above start; parameters {:.0f} + gradients {:.0f} + optimizer {:.0f} + saved "
      "activations {:.0f} = {:.0f} MB; ratio {:.3f}\n",
      peak / kMB, static_cast<double>(training.store.value_bytes()) / kMB,
      static_cast<double>(training.store.grad_bytes()) / kMB,
      static_cast<double>(training.optimizer.state_bytes()) / kMB, saved / kMB, (state + saved) / kMB,
      peak / (state + saved));
  std::cout << fmt::format("model FLOP rate {:.1f} GFLOP/s [{}]\nsgemm 1024^3    {:.1f} GFLOP/s\n", median(rates) / 1e9,
                           flop_formula_name(FlopFormula::kCausal), median(limits) / 1e9);
  std::cout << fmt::format("ratio: {:.2f}\n", median(ratios));
  return 0;
}

int bench_data_parallel(RankContext& rank, const BenchOptions& bench) {
  const int num_ranks = rank.world.size();
  const std::unique_ptr<Communicator> alone = rank.world.split(rank.world.rank(), 0, "alone");
  RankContext single{rank.device, *alone, *alone, rank.recorder, rank.log};
  Training apart(single, train_options(bench, 1));
  Training together(rank, train_options(bench, num_ranks));
  const MockSource source = source_of(apart.options);
  warm_up(apart, source);
  warm_up(together, source);
  std::vector<double> ratios, apart_rates, together_rates;
  for (int round = 0; round < bench.steps; ++round) {  // taking turns, so that noise meets both
    apart_rates.push_back(measure(rank, apart, source, 1));
    together_rates.push_back(measure(rank, together, source, 1));
    ratios.push_back(together_rates.back() / apart_rates.back());
  }
  if (rank.world.rank() == 0) {
    std::cout << fmt::format(
        "GPT-2 124M, T={}, micro-batch {}, gradient accumulation {}, {} ranks\n"
        "{} independent jobs side by side: {:.0f} tokens/s\ndata {}: {:.0f} tokens/s\nratio: {:.2f}\n",
        bench.seq_length, bench.micro_batch_size, bench.accumulate, num_ranks, num_ranks, median(apart_rates),
        num_ranks, median(together_rates), median(ratios));
  }
  return 0;
}

// Prints the help and returns false for --help.
bool parse(BenchOptions& bench, int argc, char** argv) {
  CLI::App app{
      "GPT training steps: on a CPU those of GPT-2 124M beside limits of the machine, measured in the same run; on\n"
      "GPUs tokens a second, and with --peak-tflops the utilisation. Flags that are not listed here are "
      "pretrain_gpt's.",
      "bench_train"};
  app.add_option("--seq-length", bench.seq_length,
                 "T; 64 unless given, 256 with --data-parallel, 1024 with --compare and on GPUs")
      ->check(CLI::Range(int64_t{1}, int64_t{8192}));
  app.add_option("--micro-batch-size", bench.micro_batch_size,
                 "B; 4 unless given, 1 with --data-parallel and --compare, 8 on GPUs")
      ->check(CLI::PositiveNumber);
  app.add_option("--accumulate", bench.accumulate,
                 "micro-batches per optimizer step; 1, or 4 with --data-parallel and --compare")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", bench.steps, "steps measured")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--data-parallel", bench.data_parallel, "under mpirun: data-parallel ranks beside independent ones");
  app.add_option(
         "--compare", bench.compare,
         "step time with these flags of pretrain_gpt beside that without, in turn: --compare=\"--zero-stage 1\"; "
         "may be given several times")
      ->allow_extra_args(false);
  app.add_option("--device", bench.device, "cpu or cuda; on GPUs all ranks of mpirun train data-parallel")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--model", bench.model,
                 "124m; on GPUs and with --compare also 1.3b (24 layers, width 2048, heads of 128), small or tiny")
      ->check(CLI::IsMember(model_names()))
      ->capture_default_str();
  app.add_option("--peak-tflops", bench.peak_tflops, "of one GPU, for the utilisation (MFU)")
      ->check(CLI::PositiveNumber);
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kUsage, fmt::format("{}; bench_train --help lists the flags", error.what()));
  }
  bench.flags = app.remaining();
  const bool on_gpu = bench.device == "cuda", compares = !bench.compare.empty();
  const auto otherwise = [](int64_t& value, int64_t normal) { value = value > 0 ? value : normal; };
  otherwise(bench.seq_length, on_gpu || compares ? 1024 : bench.data_parallel ? 256 : 64);
  otherwise(bench.micro_batch_size, compares || (bench.data_parallel && !on_gpu) ? 1 : on_gpu ? 8 : 4);
  otherwise(bench.accumulate, compares || (bench.data_parallel && !on_gpu) ? 4 : 1);
  return true;
}

int bench_train(RankContext& rank, int argc, char** argv) {
  BenchOptions bench;
  bool wanted = false;
  TrainOptions options;
  std::vector<TrainOptions> others;
  agree(rank.world, [&] {
    wanted = parse(bench, argc, argv);
    if (wanted) {
      options = train_options(bench, bench.data_parallel ? 1 : rank.world.size());
    }
    for (const std::string& flags : bench.compare) {
      others.push_back(train_options(bench, rank.world.size(), flags));
    }
  });
  if (!wanted) {
    return 0;
  }
  if (!bench.compare.empty() || bench.device == "cuda") {
    DeviceWorld on_device(rank, start_device(rank, options));
    RankContext& context = on_device.context();
    return bench.compare.empty() ? bench_gpus(context, options, {bench.steps, bench.peak_tflops})
                                 : bench_compare(context, bench, options, others);
  }
  REQUIRE(bench.model == "124m" && !options.bf16, ErrorCode::kUsage,
          "--model {}{}: figures of a CPU are those of the 124m model in fp32; give --device cuda or --compare",
          bench.model, options.bf16 ? " --bf16" : "");
  REQUIRE(bench.data_parallel == (rank.world.size() > 1), ErrorCode::kUsage,
          "--data-parallel needs mpirun with 2 ranks or more, everything but --compare one rank; {} were started",
          rank.world.size());
  return bench.data_parallel ? bench_data_parallel(rank, bench) : bench_one_rank(rank, bench);
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  return ashlar::run_main(argc, argv, [&](ashlar::RankContext& rank) { return ashlar::bench_train(rank, argc, argv); });
}
