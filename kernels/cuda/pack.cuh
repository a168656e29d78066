// Four consecutive floats, the unit in which bandwidth-bound kernels move data: one access of 16 bytes where pointers
// and row lengths allow it (`wide`), else four of 4. Which thread computes which element does not depend on that, so
// neither do the bits.
#pragma once

#include <initializer_list>

#include "kernels/cuda/device.cuh"

namespace ashlar::kernels::cuda {

inline constexpr int kPack = 4;

struct Pack {
  float v[kPack];
};

// Elements from `left` on lie beyond the end: they are not touched, and read as 0.
DEVICE_INLINE Pack load_pack(const float* from, int64_t left, bool wide) {
  if (wide && left >= kPack) {
    const auto q = load16<float4>(from);
    return {{q.x, q.y, q.z, q.w}};
  }
  Pack p;
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    p.v[k] = k < left ? from[k] : 0.0f;
  }
  return p;
}

DEVICE_INLINE void store_pack(float* to, const Pack& p, int64_t left, bool wide) {
  if (wide && left >= kPack) {
    store16(to, make_float4(p.v[0], p.v[1], p.v[2], p.v[3]));
    return;
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    if (k < left) {
      to[k] = p.v[k];
    }
  }
}

// Whether packs may be moved whole: all pointers (null ones too) on 16 bytes, and rows a whole number of packs.
inline bool can_be_wide(std::initializer_list<const void*> pointers, int64_t columns = kPack) {
  bool wide = columns % kPack == 0;
  for (const void* p : pointers) {
    wide = wide && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  }
  return wide;
}

// Elementwise kernels: one pack per thread.
inline constexpr int kFlatThreads = 256;
inline dim3 flat_grid(int64_t n) {
  constexpr int64_t kPerBlock = int64_t{kFlatThreads} * kPack;
  return dim3(static_cast<unsigned>((n + kPerBlock - 1) / kPerBlock));
}
DEVICE_INLINE int64_t flat_index() {
  return (static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x) * kPack;
}

}  // namespace ashlar::kernels::cuda
