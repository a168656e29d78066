// Philox-4x32-10 on a GPU: the bits of runtime/base/rng.h.
#pragma once

#include "kernels/cuda/device.cuh"

namespace ashlar::kernels::cuda {

struct PhiloxWords {
  uint32_t w[4];
};

DEVICE_INLINE PhiloxWords philox_4x32_10(PhiloxWords counter, uint32_t key0, uint32_t key1) {
  uint32_t(&c)[4] = counter.w;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c[2];
    c[0] = static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0;
    c[1] = static_cast<uint32_t>(product1);
    c[2] = static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1;
    c[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace ashlar::kernels::cuda
