// Training steps on GPUs, as a training loop runs them: one step on its way while the next is put on the stream.
#pragma once

#include "parallel/train/options.h"
#include "runtime/comm/launch.h"

namespace ashlar {

struct GpuBench {
  int steps = 5;           // measured, behind two that are not
  double peak_tflops = 0;  // of one GPU, for the utilisation; 0: not known
};

// Collective. Blocks the host. `options` are resolved, `rank` is a rank on its GPU. Rank 0 prints.
int bench_gpus(RankContext& rank, const TrainOptions& options, const GpuBench& bench);

}  // namespace ashlar
