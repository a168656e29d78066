// From settings that all ranks agree on to a device for each of them.
#pragma once

#include "parallel/train/options.h"
#include "runtime/comm/launch.h"

namespace ashlar {

// Collective. Blocks the host. What --device and --distributed-backend mean on this machine. Where GPUs are asked for,
// or may be used (auto), the facts of all ranks meet (runtime/device/cuda/facts.h) and every rank looks at all of them:
// throws the same AgreedError(kUsage) on all ranks with everything that keeps the job from starting. Says in one line
// what was chosen and why, and binds this thread, and the threads it makes from now on, to the cores beside its GPU.
// `options` are resolved.
DeviceRequest start_device(RankContext& rank, const TrainOptions& options);

// Collective. Blocks the host. Before the arenas of a run are taken on a GPU, with the communicators made, whose memory
// NCCL takes as it needs: whether the plan still fits. Throws AgreedError(kUsage). Does nothing on a CPU.
void check_room(RankContext& rank, const TrainOptions& options);

// Pure. Device memory that a rank of these resolved options allocates on a GPU before its first step (plan_memory).
int64_t planned_device_bytes(const TrainOptions& options, int world_rank);

}  // namespace ashlar
