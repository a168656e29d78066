// CPU attention; the contract is kernels/attention.h. T is float, double, BFloat16 or Float16.
#pragma once

#include <cstdint>

#include "kernels/cpu/element.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cpu {

// Largest head dim: blocks live on the stack, whose use grows with it (about 1.3 MB in fp32 at the limit).
inline constexpr int kMaxHeadDim = 256;

struct AttentionSizes {
  int64_t batch;     // B
  int64_t sequence;  // T
  int64_t heads;     // H
  int64_t head_dim;  // D
  double scale;
  Dropout dropout = {};
};

// out [B,T,H,D], lse [B,H,T] from qkv [B,T,3,H,D].
template <typename T>
void attention_forward(T* out, Compute<T>* lse, const T* qkv, AttentionSizes sizes);

// dqkv [B,T,3,H,D] from dout [B,T,H,D] and what forward read and wrote. delta [B,H,T] is scratch. For 16-bit types each
// thread allocates sums of a head's gradients at its first call.
template <typename T>
void attention_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const Compute<T>* lse, Compute<T>* delta,
                        AttentionSizes sizes);

}  // namespace ashlar::kernels::cpu
