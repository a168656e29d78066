// What the flags of offloading mean on this machine.
#pragma once

#include "parallel/train/options.h"
#include "parallel/zero/offload_config.h"
#include "runtime/comm/launch.h"

namespace ashlar {

// Pure. Of resolved options, for the rank of this number.
OffloadConfig offload_config(const TrainOptions& options, int world_rank);

// Collective. Blocks the host. What only shows when --device auto has chosen: throws AgreedError(kUsage).
void check_offload_device(RankContext& rank, const TrainOptions& options);

}  // namespace ashlar
