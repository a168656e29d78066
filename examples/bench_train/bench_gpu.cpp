#include "examples/bench_train/bench_gpu.h"

#include <iostream>

#include "examples/bench_train/compare.h"
#include "parallel/train/training.h"
#include "runtime/data/dataset.h"

namespace ashlar {
namespace {

// Seconds of so many steps, from an idle device to an idle device; `loss` is that of the last.
double seconds_of(Training& training, const SampleSource& source, int steps, double& loss) {
  training.rank.world.barrier();
  const double start = seconds_now();
  for (int step = 0; step < steps; ++step) {
    submit_step(training, source);
    while (training.results.num_pending() > (step + 1 < steps ? result_lag(training) : 0)) {
      const StepResult result = take_result(training);
      require_update(result);
      loss = result.loss;
    }
  }
  training.rank.world.barrier();
  return seconds_now() - start;
}

}  // namespace

int bench_gpus(RankContext& rank, const TrainOptions& options, const GpuBench& bench) {
  Training training(rank, options);
  const MockSource source("bench", {.seq_length = options.seq_length, .vocab_size = options.vocab_size});
  double loss = 0;
  warm_up(training, source);  // plans of libraries, connections too
  const double seconds = seconds_of(training, source, bench.steps, loss) / bench.steps;
  if (rank.world.rank() != 0) {
    return 0;
  }
  const double tokens = static_cast<double>(options.global_batch_size * options.seq_length);
  const double flops =
      tokens * static_cast<double>(flops_per_token(training.config, options.seq_length, FlopFormula::kCausal));
  const double tflops = flops / seconds / rank.world.size() / 1e12;
  std::cout << fmt::format(
      "{} parameters in {}, T={}, micro-batch {}, {} micro-batches a step, {} GPUs\n"
      "step {:.3f} s, {:.0f} tokens/s, loss {:.4f}\n"
      "device memory of rank 0: {:.0f} MB\n"
      "model FLOP rate {:.2f} TFLOP/s a GPU [{}]\n",
      count_parameters(training.config), dtype_name(training.config.dtype), options.seq_length,
      options.micro_batch_size, options.num_microbatches, rank.world.size(), seconds, tokens / seconds, loss,
      static_cast<double>(rank.device.memory_uses(MemoryKind::kDevice).total.peak) / 1e6, tflops,
      flop_formula_name(FlopFormula::kCausal));
  if (bench.peak_tflops > 0) {
    std::cout << fmt::format("MFU: {:.3f} of {} TFLOP/s\n", tflops / bench.peak_tflops, bench.peak_tflops);
  }
  return 0;
}

}  // namespace ashlar
