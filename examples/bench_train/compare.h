// Step time of two settings of one training run, taking turns.
#pragma once

#include <vector>

#include "examples/bench_train/model_sizes.h"
#include "parallel/train/training.h"

namespace ashlar {

double seconds_now();
double median(std::vector<double> values);

// Collective. Blocks the host. Tokens per second of the ranks together over so many steps, by the slowest.
double measure(RankContext& rank, Training& training, const SampleSource& source, int steps);

// Collective. Blocks the host. For each text of bench.compare: steps of `base` and of its own resolved options, one of
// `others`, in turn, so that noise meets both; two runs are held in memory at a time. Rank 0 prints medians and their
// ratio.
int bench_compare(RankContext& rank, const BenchOptions& bench, const TrainOptions& base,
                  const std::vector<TrainOptions>& others);

}  // namespace ashlar
