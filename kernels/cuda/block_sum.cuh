// Sums over the threads of a block in one fixed order: butterflies within warps, then the warps in ascending order.
#pragma once

#include "kernels/cuda/device.cuh"

namespace ashlar::kernels::cuda {

inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

template <typename T>
DEVICE_INLINE T warp_sum(T value) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, width);
  }
  return value;
}

// All threads of kWarps warps get the sum; `thread` counts through them. `sums` [kWarps] is shared memory.
template <int kWarps, typename T>
DEVICE_INLINE T block_sum(T value, T* sums, int thread) {
  value = warp_sum(value);
  if (kWarps == 1) {
    return value;
  }
  __syncthreads();  // the sums of an earlier call have been read
  if (thread % 32 == 0) {
    sums[thread / 32] = value;
  }
  __syncthreads();
  T total = sums[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    total += sums[w];
  }
  return total;
}

}  // namespace ashlar::kernels::cuda
