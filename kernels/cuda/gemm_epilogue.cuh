// What happens to the sums of a matrix product: one text for the tiles of gemm_tile.cuh and for the sum of splits.
#pragma once

#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/gemm_launch.h"

namespace ashlar::kernels::cuda {

// Eight consecutive 16-bit elements, which move as 16 bytes, and as the fp32 numbers that are computed with.
struct Eight {
  float v[8];
};

DEVICE_INLINE float2 to_floats(__nv_bfloat162 pair) {
  return __bfloat1622float2(pair);
}
DEVICE_INLINE float2 to_floats(__half2 pair) {
  return __half22float2(pair);
}
DEVICE_INLINE __nv_bfloat162 to_pair(__nv_bfloat16, float low, float high) {
  return __floats2bfloat162_rn(low, high);
}
DEVICE_INLINE __half2 to_pair(__half, float low, float high) {
  return __floats2half2_rn(low, high);
}

template <typename T>
DEVICE_INLINE Eight unpack(uint4 bits) {
  using Pair = decltype(to_pair(T(), 0.0f, 0.0f));
  Pair pairs[4];
  memcpy(static_cast<void*>(pairs), &bits, sizeof bits);
  Eight e;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = to_floats(pairs[i]);
    e.v[2 * i] = two.x;
    e.v[2 * i + 1] = two.y;
  }
  return e;
}

template <typename T>
DEVICE_INLINE uint4 pack(const Eight& e) {
  using Pair = decltype(to_pair(T(), 0.0f, 0.0f));
  Pair pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = to_pair(T(), e.v[2 * i], e.v[2 * i + 1]);
  }
  uint4 bits;
  memcpy(&bits, pairs, sizeof bits);
  return bits;
}

template <typename T>
DEVICE_INLINE Eight load_eight(const void* base, int64_t at) {
  return unpack<T>(load16<uint4>(static_cast<const T*>(base) + at));
}

DEVICE_INLINE void add_to(Eight& e, const Eight& other) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    e.v[i] += other.v[i];
  }
}

// Stores eight sums as T, after the call's epilogue. `at` is the index in c of the first, `column` its column.
template <typename T>
DEVICE_INLINE void finish_eight(const GemmArgs& args, Eight e, int64_t at, int column) {
  const bool has_bias = args.epilogue == Epilogue::kBias || args.epilogue == Epilogue::kBiasActivation;
  if (has_bias && args.bias != nullptr) {
    add_to(e, load_eight<T>(args.bias, column));
  }
  if (args.epilogue == Epilogue::kBiasActivation) {
    const uint4 stored = pack<T>(e);
    store16(static_cast<T*>(args.pre) + at, stored);
    e = unpack<T>(stored);
#pragma unroll
    for (float& x : e.v) {
      x = args.activation == Activation::kGeluTanh ? GeluTanh::value(x) : GeluErf::value(x);
    }
  } else if (args.epilogue == Epilogue::kActivationBackward) {
    const Eight pre = load_eight<T>(args.pre, at);
    e = unpack<T>(pack<T>(e));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      e.v[i] *= args.activation == Activation::kGeluTanh ? GeluTanh::slope(pre.v[i]) : GeluErf::slope(pre.v[i]);
    }
  }
  store16(static_cast<T*>(args.c) + at, pack<T>(e));
}

// Stores four sums as fp32.
DEVICE_INLINE void finish_four(float* c, bool add, float4 sums, int64_t at) {
  if (add) {
    const auto before = load16<float4>(c + at);
    sums = make_float4(before.x + sums.x, before.y + sums.y, before.z + sums.z, before.w + sums.w);
  }
  store16(c + at, sums);
}

}  // namespace ashlar::kernels::cuda
