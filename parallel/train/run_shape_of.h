// From settings to what parallel/plan computes with.
#pragma once

#include "parallel/plan/run_shape.h"
#include "parallel/train/options.h"

namespace ashlar {

// Pure. The run that resolved options with a batch describe, on this kind of device.
RunShape run_shape_of(const TrainOptions& options, const DeviceRequest& device);

// Pure. What --device and --distributed-backend name, without a look at the machine; auto is the CPU unless the backend
// is for GPUs.
DeviceRequest named_device(const TrainOptions& options);
// Pure. What a run on this kind of device uses.
DeviceRequest used_device(const TrainOptions& options, DeviceKind kind);

}  // namespace ashlar
