// Which device a rank works on and what carries its traffic.
#pragma once

#include "runtime/device/device.h"

namespace ashlar {

enum class DeviceBackend {
  kHost,    // the host communicator itself: for a CPU
  kStaged,  // device memory over the host communicator
  kNccl,
};

struct DeviceRequest {
  DeviceKind kind = DeviceKind::kCpu;
  DeviceBackend backend = DeviceBackend::kHost;
  int gpu_index = -1;  // of the GPUs that this process sees
  double init_timeout_seconds = 120;
  size_t staging_bytes = size_t{2} << 20;  // of one of the two buffers that collectives of kStaged go through
};

}  // namespace ashlar
