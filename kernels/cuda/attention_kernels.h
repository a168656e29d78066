// What the files of attention share: a call as the kernels take it, and the two forms that attention.cu chooses from.
#pragma once

#include "kernels/cuda/attention.h"

namespace ashlar::kernels::cuda {

// The mask of kernels/plain_types.h.
struct AttentionDropout {
  uint32_t key0 = 0, key1 = 0;
  uint32_t threshold = 0;
  uint32_t first_sample = 0, first_head = 0;
  float keep_scale = 1;
};

struct AttentionSizes {
  int length, num_heads, group, head_dim;  // T, H, H / Hk, D
  int q_row, kv_row;
  float scale;       // of scores
  float scale_log2;  // the same for powers of two
  AttentionDropout dropout;
};

template <typename T>
struct AttentionInputs {
  const T* q;
  const T* k;
  const T* v;
};

template <typename T>
struct AttentionGradients {
  T* dq;
  T* dk;
  T* dv;
  const T* dout;
  const float* lse;
  const float* delta;
};

// What a launch needs beside the kernel's arguments.
struct AttentionGrid {
  int batch;
  bool dropout;
};

// Tensor cores; T is bf16 or fp16, head_dim a multiple of 8 up to 128, everything on 16 bytes.
inline constexpr int kMaxMmaHeadDim = 128;
template <typename T>
void attention_forward_mma(T* out, float* lse, const AttentionInputs<T>& in, const AttentionSizes& sizes,
                           AttentionGrid grid, StreamHandle stream);
template <typename T>
void attention_dkv_mma(const AttentionGradients<T>& gradients, const AttentionInputs<T>& in,
                       const AttentionSizes& sizes, AttentionGrid grid, StreamHandle stream);
template <typename T>
void attention_dq_mma(const AttentionGradients<T>& gradients, const AttentionInputs<T>& in, const AttentionSizes& sizes,
                      AttentionGrid grid, StreamHandle stream);

// Plain tiles; T is float, bf16 or fp16.
template <typename T>
void attention_forward_plain(T* out, float* lse, const AttentionInputs<T>& in, const AttentionSizes& sizes,
                             AttentionGrid grid, StreamHandle stream);
template <typename T>
void attention_backward_plain(const AttentionGradients<T>& gradients, const AttentionInputs<T>& in,
                              const AttentionSizes& sizes, AttentionGrid grid, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
