// A few consecutive elements in fp32, the unit in which bandwidth-bound kernels move data: one access of 16 bytes (8
// for four elements of 16 bits) where pointers and row lengths allow it (`wide`), else one per element. Which thread
// computes which element does not depend on that, so neither do the bits.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

// Elements of T in 16 bytes, for kernels whose large operands all have one type. Where 16 bits walk beside fp32, packs
// have four elements.
template <typename T>
inline constexpr int kPackOf = 16 / sizeof(T);

template <int kSize_>
struct Pack {
  static constexpr int kSize = kSize_;
  static_assert(kSize == 4 || kSize == 8);
  float v[kSize];
};

// 16-bit elements in the registers that hold them in memory's order.
template <int kWords>
struct Words {
  uint32_t w[kWords];
};

// A pack as it lies in memory; kernels that keep many elements of 16 bits keep them so.
template <typename T, int kSize>
struct RawPack {
  Words<kSize / 2> bits;
};
template <int kSize>
struct RawPack<float, kSize> {
  Pack<kSize> values;
};

template <typename T, int kSize>
DEVICE_INLINE Pack<kSize> unpack(const RawPack<T, kSize>& raw) {
  if constexpr (std::is_same_v<T, float>) {
    return raw.values;
  } else {
    Pack<kSize> p;
#pragma unroll
    for (int k = 0; k < kSize / 2; ++k) {
      const float2 pair = unpack_pair<T>(raw.bits.w[k]);
      p.v[2 * k] = pair.x;
      p.v[2 * k + 1] = pair.y;
    }
    return p;
  }
}

template <typename T, int kSize>
DEVICE_INLINE RawPack<T, kSize> to_raw(const Pack<kSize>& p) {
  RawPack<T, kSize> raw;
  if constexpr (std::is_same_v<T, float>) {
    raw.values = p;
  } else {
#pragma unroll
    for (int k = 0; k < kSize / 2; ++k) {
      raw.bits.w[k] = pack_pair<T>(p.v[2 * k], p.v[2 * k + 1]);
    }
  }
  return raw;
}

// Elements from `left` on lie beyond the end: they are not touched, and read as 0.
template <int kSize, typename T>
DEVICE_INLINE RawPack<T, kSize> load_raw(const T* from, int64_t left, bool wide) {
  if (wide && left >= kSize) {
    RawPack<T, kSize> raw;
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int k = 0; k < kSize; k += 4) {
        const auto q = load16<float4>(from + k);
        raw.values.v[k] = q.x;
        raw.values.v[k + 1] = q.y;
        raw.values.v[k + 2] = q.z;
        raw.values.v[k + 3] = q.w;
      }
    } else if constexpr (kSize == 8) {
      raw.bits = load16<Words<4>>(from);
    } else {
      raw.bits = load8<Words<2>>(from);
    }
    return raw;
  }
  Pack<kSize> p;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    p.v[k] = k < left ? to_float(from[k]) : 0.0f;
  }
  return to_raw<T>(p);
}

template <int kSize, typename T>
DEVICE_INLINE Pack<kSize> load_pack(const T* from, int64_t left, bool wide) {
  return unpack<T, kSize>(load_raw<kSize>(from, left, wide));
}

template <typename T, int kSize>
DEVICE_INLINE void store_pack(T* to, const Pack<kSize>& p, int64_t left, bool wide) {
  if (wide && left >= kSize) {
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int k = 0; k < kSize; k += 4) {
        store16(to + k, make_float4(p.v[k], p.v[k + 1], p.v[k + 2], p.v[k + 3]));
      }
    } else if constexpr (kSize == 8) {
      store16(to, to_raw<T>(p).bits);
    } else {
      store8(to, to_raw<T>(p).bits);
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    if (k < left) {
      to[k] = from_float<T>(p.v[k]);
    }
  }
}

// Whether packs of T may be moved whole: all pointers (null ones too) aligned, and rows a whole number of packs.
template <typename T, int kSize>
bool can_be_wide(std::initializer_list<const void*> pointers, int64_t columns = kSize) {
  constexpr size_t kAlignment = sizeof(T) * kSize < 16 ? sizeof(T) * kSize : 16;
  bool wide = columns % kSize == 0;
  for (const void* p : pointers) {
    wide = wide && reinterpret_cast<uintptr_t>(p) % kAlignment == 0;
  }
  return wide;
}

// Elementwise kernels: one pack per thread.
inline constexpr int kFlatThreads = 256;
template <int kSize>
dim3 flat_grid(int64_t n) {
  constexpr int64_t kPerBlock = int64_t{kFlatThreads} * kSize;
  return dim3(static_cast<unsigned>((n + kPerBlock - 1) / kPerBlock));
}
template <int kSize>
DEVICE_INLINE int64_t flat_index() {
  return (static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x) * kSize;
}

// Calls function(T{}) with the C++ type of an element. On the host.
template <typename Function>
void with_element(Element element, Function function) {
  switch (element) {
    case Element::kF32:
      function(float{});
      break;
    case Element::kBf16:
      function(Bf16{});
      break;
    case Element::kF16:
      function(F16{});
      break;
  }
}

}  // namespace ashlar::kernels::cuda
