// --dry-run: what a run would be, without data and without other ranks.
#pragma once

#include "parallel/train/options.h"
#include "runtime/comm/launch.h"

namespace ashlar {

// Collective. Prints the ranks, memory by kind, traffic, FLOPs, bubble and days for --world-size ranks (or those
// started), and throws where --memory-limit-gb is too little. Allocates no model, whatever its size.
int dry_run(RankContext& rank, const TrainOptions& options);

}  // namespace ashlar
