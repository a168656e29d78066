// Chooses between the two forms of attention, and the part of backward that they share.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/attention_plain.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kDeltaThreads = 256;
constexpr int kDeltaLanes = 8;  // per row

// delta [B,H,T] = sum over d of dout * out, both [B,T,H,D]: the part of a score's gradient that all keys of a query
// share. Eight lanes per row, each with every eighth pack of 16 bytes.
template <typename T>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_kernel(float* delta, const T* dout, const T* out, AttentionSizes sizes, int64_t rows, bool wide) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(T));
  struct Elements {
    T v[kPack];
  };
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / kDeltaLanes;
  const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const bool inside = row < rows;
  float sum = 0;
  if (inside) {
    const T* a = dout + row * sizes.head_dim;
    const T* b = out + row * sizes.head_dim;
    for (int d = lane * kPack; d < sizes.head_dim; d += kDeltaLanes * kPack) {
      if (wide) {
        const uint4 a_bits = load16<uint4>(a + d);
        const uint4 b_bits = load16<uint4>(b + d);
        Elements x, y;
        memcpy(&x, &a_bits, sizeof x);
        memcpy(&y, &b_bits, sizeof y);
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          sum += element_to_float(x.v[i]) * element_to_float(y.v[i]);
        }
      } else {
        for (int i = d; i < min(d + kPack, sizes.head_dim); ++i) {
          sum += element_to_float(a[i]) * element_to_float(b[i]);
        }
      }
    }
  }
#pragma unroll
  for (int width = kDeltaLanes / 2; width > 0; width /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, width);
  }
  if (inside && lane == 0) {
    const int64_t token = row / sizes.num_heads;
    const int64_t head = row % sizes.num_heads;
    delta[(token / sizes.length * sizes.num_heads + head) * sizes.length + token % sizes.length] = sum;
  }
}

AttentionSizes sizes_of(const AttentionCall& call) {
  constexpr double kLog2E = 1.4426950408889634;
  const Dropout& dropout = call.dropout;
  return {static_cast<int>(call.length),
          static_cast<int>(call.num_heads),
          static_cast<int>(call.num_heads / call.num_kv_heads),
          static_cast<int>(call.head_dim),
          static_cast<int>(call.q_row),
          static_cast<int>(call.kv_row),
          static_cast<float>(call.scale),
          static_cast<float>(call.scale * kLog2E),
          {dropout.key[0], dropout.key[1], dropout.threshold(), static_cast<uint32_t>(dropout.first_sample),
           static_cast<uint32_t>(dropout.first_head), static_cast<float>(dropout.keep_scale())}};
}

bool is_on_16_bytes(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <typename T>
AttentionInputs<T> inputs_of(const AttentionCall& call) {
  return {static_cast<const T*>(call.q), static_cast<const T*>(call.k), static_cast<const T*>(call.v)};
}

// Whether every row of a head starts on 16 bytes; `results` are the caller's other tensors.
bool has_wide_rows(const AttentionCall& call, std::initializer_list<const void*> results) {
  const int64_t pack = call.element == Element::kF32 ? 4 : 8;
  bool wide = call.head_dim % pack == 0 && call.q_row % pack == 0 && call.kv_row % pack == 0 &&
              is_on_16_bytes(call.q) && is_on_16_bytes(call.k) && is_on_16_bytes(call.v);
  for (const void* p : results) {
    wide = wide && is_on_16_bytes(p);
  }
  return wide;
}

template <typename T>
constexpr bool kHasMma = sizeof(T) == 2;

template <typename T>
void forward(void* out, float* lse, const AttentionCall& call, StreamHandle stream) {
  const AttentionSizes sizes = sizes_of(call);
  const AttentionGrid grid{static_cast<int>(call.batch), call.dropout.probability > 0};
  const AttentionInputs<T> in = inputs_of<T>(call);
  if constexpr (kHasMma<T>) {
    if (call.head_dim <= kMaxMmaHeadDim && has_wide_rows(call, {out})) {
      attention_forward_mma(static_cast<T*>(out), lse, in, sizes, grid, stream);
      return;
    }
  }
  attention_forward_plain(static_cast<T*>(out), lse, in, sizes, grid, stream);
}

template <typename T>
void backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
              const AttentionCall& call, float* delta, StreamHandle stream) {
  const AttentionSizes sizes = sizes_of(call);
  const AttentionGrid grid{static_cast<int>(call.batch), call.dropout.probability > 0};
  const AttentionInputs<T> in = inputs_of<T>(call);
  const AttentionGradients<T> gradients{
      static_cast<T*>(dq), static_cast<T*>(dk), static_cast<T*>(dv), static_cast<const T*>(dout), lse, delta};
  const int64_t rows = call.batch * call.length * call.num_heads;
  const bool wide = has_wide_rows(call, {dq, dk, dv, dout, out});
  constexpr int64_t kRowsPerBlock = kDeltaThreads / kDeltaLanes;
  LAUNCH(attention_delta_kernel<T>, dim3(static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock)),
         dim3(kDeltaThreads), 0, stream, delta, gradients.dout, static_cast<const T*>(out), sizes, rows, wide);
  if constexpr (kHasMma<T>) {
    if (call.head_dim <= kMaxMmaHeadDim && wide) {
      attention_dkv_mma(gradients, in, sizes, grid, stream);
      attention_dq_mma(gradients, in, sizes, grid, stream);
      return;
    }
  }
  attention_backward_plain(gradients, in, sizes, grid, stream);
}

}  // namespace

void attention_forward(void* out, float* lse, const AttentionCall& call, StreamHandle stream) {
  switch (call.element) {
    case Element::kF32:
      return forward<float>(out, lse, call, stream);
    case Element::kBf16:
      return forward<__nv_bfloat16>(out, lse, call, stream);
    case Element::kF16:
      return forward<__half>(out, lse, call, stream);
  }
}

void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                        const AttentionCall& call, float* delta, StreamHandle stream) {
  switch (call.element) {
    case Element::kF32:
      return backward<float>(dq, dk, dv, dout, out, lse, call, delta, stream);
    case Element::kBf16:
      return backward<__nv_bfloat16>(dq, dk, dv, dout, out, lse, call, delta, stream);
    case Element::kF16:
      return backward<__half>(dq, dk, dv, dout, out, lse, call, delta, stream);
  }
}

}  // namespace ashlar::kernels::cuda
