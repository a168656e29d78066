// Philox-4x32-10 of several counters at once, so that it vectorises: the bits of runtime/base/rng.h.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cpu {

// words [4, kWidth]: counters, and then what philox_4x32_10 makes of each.
template <int kWidth>
void philox_lanes(uint32_t (&words)[4][kWidth], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    for (int c = 0; c < kWidth; ++c) {
      const uint64_t product0 = uint64_t{0xD2511F53u} * words[0][c];
      const uint64_t product1 = uint64_t{0xCD9E8D57u} * words[2][c];
      words[0][c] = static_cast<uint32_t>(product1 >> 32) ^ words[1][c] ^ key0;
      words[1][c] = static_cast<uint32_t>(product1);
      words[2][c] = static_cast<uint32_t>(product0 >> 32) ^ words[3][c] ^ key1;
      words[3][c] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace ashlar::kernels::cpu
