// NVIDIA GPUs as devices. Linked from cuda_device.cpp where the CUDA toolkit is, from cuda_unavailable.cpp elsewhere.
// Never run on a GPU so far: the tests run it on a stand-in for the CUDA runtime (tests/emulation/standins/cudart).
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace ashlar {

// Pure. How many GPUs this process sees (CUDA_VISIBLE_DEVICES counts); 0 without a driver that this build can use, and
// in a build without CUDA. check_device_facts() in facts.h says why.
int num_cuda_devices();

// Blocks the host. GPU `index` of those this process sees. Its streams never use CUDA's default stream, and its calls
// may come from any thread. Throws kUsage when there is no such GPU.
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace ashlar
