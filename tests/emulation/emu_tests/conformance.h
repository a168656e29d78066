// One warp that runs a tensor-core operation on fragments that the test filled, and returns what each lane got.
#pragma once

#include <cstdint>

namespace ashlar::emu {

struct MmaFragments {
  uint32_t a[32][4];
  uint32_t b[32][2];
  float d[32][4];  // in: C, out: D
};
// `fragments` lies in device memory; 16-bit elements are bf16 or fp16.
void run_mma(MmaFragments* fragments, bool is_bf16);

// halves [256]: four 8x8 matrices, row-major, one after the other; out [32][4]. In device memory.
void run_ldmatrix(uint32_t* out, const uint16_t* halves, bool transpose);

}  // namespace ashlar::emu
