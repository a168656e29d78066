#include "examples/bench_train/compare.h"

#include <algorithm>
#include <chrono>
#include <iostream>

namespace ashlar {
namespace {

// One of the two, with the device memory that it took.
struct Run {
  Run(RankContext& rank, const TrainOptions& options)
      : bytes_before(rank.device.allocated_bytes()), training(rank, options), source(source_of(options)) {
    warm_up(training, source);
    bytes = rank.device.allocated_bytes() - bytes_before;
  }

  int64_t bytes_before, bytes = 0;
  Training training;
  MockSource source;
  std::vector<double> rates;
};

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void warm_up(Training& training, const SampleSource& source) {
  constexpr int kMostSteps = 60;  // a loss scale of 2^32, where it begins by default, is 1 after 33
  for (int step = 0; step < kMostSteps; ++step) {
    const StepOutcome outcome = train_step(training, source).outcome;
    if (outcome == StepOutcome::kUpdated) {
      return;
    }
    REQUIRE(outcome == StepOutcome::kSkipped, ErrorCode::kNumerics,
            "step {} has no finite loss or gradients: there is no training whose speed could be measured", step + 1);
  }
  throw Error(ErrorCode::kNumerics,
              fmt::format("--fp16: {} steps overflowed; give a smaller --initial-loss-scale", kMostSteps));
}

void require_update(const StepResult& result) {
  REQUIRE(result.outcome == StepOutcome::kUpdated, ErrorCode::kNumerics,
          "a measured step updated nothing: loss or gradients were not finite; with --fp16 give a smaller "
          "--initial-loss-scale");
}

double measure(RankContext& rank, Training& training, const SampleSource& source, int steps) {
  rank.world.barrier();
  const double start = seconds_now();
  for (int step = 0; step < steps; ++step) {
    require_update(train_step(training, source));
  }
  rank.world.barrier();
  const double tokens = static_cast<double>(training.options.global_batch_size * training.options.seq_length * steps);
  return tokens / (seconds_now() - start) * (rank.world.size() / training.rank.world.size());
}

int bench_compare(RankContext& rank, const BenchOptions& bench, const TrainOptions& base,
                  const std::vector<TrainOptions>& others) {
  const bool speaks = rank.world.rank() == 0;
  if (speaks) {
    std::cout << fmt::format(
        "model {}, T={}, micro-batch {}, {} micro-batches a step, {} ranks; medians of {} steps in turn\n", bench.model,
        base.seq_length, base.micro_batch_size, base.num_microbatches, rank.world.size(), bench.steps);
  }
  for (size_t at = 0; at < others.size(); ++at) {
    Run without(rank, base);
    Run with(rank, others[at]);
    std::vector<double> ratios;
    for (int step = 0; step < bench.steps; ++step) {
      for (Run* run : {&without, &with}) {
        run->rates.push_back(measure(rank, run->training, run->source, 1));
      }
      ratios.push_back(with.rates.back() / without.rates.back());
    }
    if (speaks) {
      constexpr double kMB = 1e6;
      std::cout << fmt::format(
          "{}: limit {:.1f} tokens/s (without), ours {:.1f} tokens/s, ratio {:.3f}; step time {:.3f}x; device memory "
          "{:.0f} and {:.0f} MB\n",
          bench.compare[at], median(without.rates), median(with.rates), median(ratios), 1 / median(ratios),
          static_cast<double>(without.bytes) / kMB, static_cast<double>(with.bytes) / kMB);
      std::cout.flush();
    }
  }
  return 0;
}

}  // namespace ashlar
