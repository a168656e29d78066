// Step time of two settings of one training run, taking turns.
#pragma once

#include <vector>

#include "examples/bench_train/model_sizes.h"
#include "parallel/train/training.h"

namespace ashlar {

double seconds_now();
double median(std::vector<double> values);

// Collective. Blocks the host. Steps until one has updated: the first touches fresh memory, and in fp16 the loss scale
// falls until gradients fit. Throws Error(kNumerics) where none does.
void warm_up(Training& training, const SampleSource& source);

// Throws Error(kNumerics) unless the step updated: another one's time is not a training step's.
void require_update(const StepResult& result);

// Collective. Blocks the host. Throws Error(kNumerics) where a step updates nothing. Tokens per second of the ranks
// together over so many steps, by the slowest.
double measure(RankContext& rank, Training& training, const SampleSource& source, int steps);

// Collective. Blocks the host. For each text of bench.compare: steps of `base` and of its own resolved options, one of
// `others`, in turn, so that noise meets both; two runs are held in memory at a time. Rank 0 prints medians and their
// ratio.
int bench_compare(RankContext& rank, const BenchOptions& bench, const TrainOptions& base,
                  const std::vector<TrainOptions>& others);

}  // namespace ashlar
