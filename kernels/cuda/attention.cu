// Chooses between the two forms of attention, and the part of backward that they share.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kDeltaThreads = 256;
constexpr int kDeltaLanes = 8;  // per row

// delta [B,H,T] = sum over d of dout * out, both [B,T,H,D]: the part of a score's gradient that all keys of a query
// share. Eight lanes per row, each with every eighth pack of 16 bytes.
template <typename T>
__global__ void __launch_bounds__(kDeltaThreads)
    attention_delta_kernel(float* delta, const T* dout, const T* out, AttentionSizes sizes, int64_t rows, bool wide) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x) / kDeltaLanes;
  const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const bool inside = row < rows;
  float sum = 0;
  if (inside) {
    const T* a = dout + row * sizes.head_dim;
    const T* b = out + row * sizes.head_dim;
    constexpr int kSize = kPackOf<T>;
    for (int d = lane * kSize; d < sizes.head_dim; d += kDeltaLanes * kSize) {
      const Pack<kSize> x = load_pack<kSize>(a + d, sizes.head_dim - d, wide);
      const Pack<kSize> y = load_pack<kSize>(b + d, sizes.head_dim - d, wide);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        sum += x.v[i] * y.v[i];
      }
    }
  }
#pragma unroll
  for (int width = kDeltaLanes / 2; width > 0; width /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, width);
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
  with_element(call.element, [&]<typename T>(T) { forward<T>(out, lse, call, stream); });
}

void attention_backward(void* dq, void* dk, void* dv, const void* dout, const void* out, const float* lse,
                        const AttentionCall& call, float* delta, StreamHandle stream) {
  with_element(call.element, [&]<typename T>(T) { backward<T>(dq, dk, dv, dout, out, lse, call, delta, stream); });
}

}  // namespace ashlar::kernels::cuda
