// A Stream as those see it who call these kernels without CUDA's headers.
#pragma once

#include "kernels/cuda/stream_handle.h"
#include "runtime/device/device.h"

namespace ashlar::kernels::cuda {

struct StreamPlace {
  StreamHandle handle = nullptr;
  int device_index = -1;
};

// Pure. Throws when the stream is not one of a GPU.
StreamPlace place_of(Stream& stream);

// Makes the GPU the calling thread's current one, which launches need. Cheap when it is so already.
void use_gpu(int device_index);

}  // namespace ashlar::kernels::cuda
