// Causal attention on a GPU; the contract is kernels/attention.h. 16-bit operands whose rows allow accesses of 16 bytes
// and whose heads have at most 128 values go through the tensor cores; fp32 and everything else through plain tiles.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

inline constexpr int64_t kMaxHeadDim = 256;

// q [B,T,H,D], k and v [B,T,Hk,D] of `element`, with rows further apart than they are long where they lie in one
// [B,T,3,H,D]. Query head h reads key head h / (H / Hk).
struct AttentionCall {
  Element element = Element::kF32;
  int64_t batch = 0, length = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;  // B, T, H, Hk, D
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t q_row = 0, kv_row = 0;  // elements from one token to the next, of q, and of k and v
  double scale = 0;
  Dropout dropout;
};

// out [B,T,H,D], lse [B,H,T].
void attention_forward(void* out, float* lse, const AttentionCall& call, StreamHandle stream);

// dq, dk and dv lie as q, k and v do. dout and out [B,T,H,D], lse [B,H,T] as forward wrote it, delta [B,H,T] is
// scratch. Two equal calls give the same bits: every gradient is summed by one thread, in ascending order of heads and
// blocks.
void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                        const AttentionCall& call, float* delta, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
