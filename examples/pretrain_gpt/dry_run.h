// --dry-run: what a run would be, without data and without other ranks.
#pragma once

#include "parallel/train/options.h"
#include "runtime/comm/launch.h"

namespace ashlar {

// Prints the map of ranks, parameters per stage, FLOPs and batch arithmetic for --world-size ranks (or those started).
int dry_run(RankContext& rank, const TrainOptions& options);

}  // namespace ashlar
