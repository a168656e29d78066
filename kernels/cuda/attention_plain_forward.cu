#include "kernels/cuda/attention_plain.cuh"

namespace ashlar::kernels::cuda {
namespace {

size_t shared_bytes(int head_dim) {
  return static_cast<size_t>(3 * kPlainRows * plain_row(head_dim) + kPlainRows * kPlainScoreRow) * sizeof(float);
}

// A block holds 32 queries of one head and walks over the keys in ascending order.
template <typename T, int kSums>
__global__ void __launch_bounds__(kPlainThreads)
    attention_plain_forward_kernel(T* out, float* lse, AttentionInputs<T> in, AttentionSizes sizes, int num_slices,
                                   bool dropout) {
  SMEM_DYN(shared);
  auto* const q_tile = reinterpret_cast<float*>(shared);
  float* const k_tile = q_tile + kPlainRows * plain_row(sizes.head_dim);
  float* const v_tile = k_tile + kPlainRows * plain_row(sizes.head_dim);
  float* const p_tile = v_tile + kPlainRows * plain_row(sizes.head_dim);
  const int tx = static_cast<int>(threadIdx.x) % kPlainSide;
  const int ty = static_cast<int>(threadIdx.x) / kPlainSide;
  const int head = static_cast<int>(blockIdx.y) / num_slices;
  const int first_column = static_cast<int>(blockIdx.y) % num_slices * kPlainSlice<kSums>;
  const int batch = blockIdx.z;
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kPlainRows;
  const int64_t token = static_cast<int64_t>(batch) * sizes.length;
  const int64_t kv_first = token * sizes.kv_row + head / sizes.group * sizes.head_dim;
  load_plain_tile(q_tile, in.q + token * sizes.q_row + head * sizes.head_dim, sizes.q_row, first_query, sizes.length,
                  sizes.head_dim);

  float sum_out[kPlainEach][kSums] = {};
  float sum[kPlainEach] = {};
  float largest[kPlainEach];
#pragma unroll
  for (int i = 0; i < kPlainEach; ++i) {
    largest[i] = -INFINITY;
  }
  for (int first_key = 0; first_key <= first_query; first_key += kPlainRows) {
    load_plain_tile(k_tile, in.k + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim);
    load_plain_tile(v_tile, in.v + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim);
    __syncthreads();
    float s[kPlainEach][kPlainEach];
    multiply_plain_rows(s, q_tile, k_tile, ty, tx, sizes.head_dim);
#pragma unroll
    for (int i = 0; i < kPlainEach; ++i) {
      const int query = first_query + ty + i * kPlainSide;
      float x = largest[i];
#pragma unroll
      for (int j = 0; j < kPlainEach; ++j) {
        s[i][j] = first_key + tx + j * kPlainSide > query ? -INFINITY : s[i][j];
        x = fmaxf(x, s[i][j]);
      }
      x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
      x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
      x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 4));
      const float offset = x == -INFINITY ? 0.0f : x * sizes.scale_log2;  // a row of NaN
      const float rescale = exp2_approx(largest[i] * sizes.scale_log2 - offset);
      largest[i] = x;
      sum[i] *= rescale;
#pragma unroll
      for (int j = 0; j < kPlainEach; ++j) {
        float p = exp2_approx(s[i][j] * sizes.scale_log2 - offset);
        sum[i] += p;
        if (dropout) {
          p *= plain_dropout(sizes.dropout, first_key + tx + j * kPlainSide, query, head, batch);
        }
        p_tile[(ty + i * kPlainSide) * kPlainScoreRow + tx + j * kPlainSide] = p;
      }
#pragma unroll
      for (int c = 0; c < kSums; ++c) {
        sum_out[i][c] *= rescale;
      }
    }
    __syncthreads();
    add_plain_product<kSums>(sum_out, p_tile, v_tile, ty, tx, first_column, sizes.head_dim);
    __syncthreads();
  }

  float factor[kPlainEach];
#pragma unroll
  for (int i = 0; i < kPlainEach; ++i) {
    float denominator = sum[i];
    denominator += __shfl_xor_sync(kAllLanes, denominator, 1);
    denominator += __shfl_xor_sync(kAllLanes, denominator, 2);
    denominator += __shfl_xor_sync(kAllLanes, denominator, 4);
    factor[i] = 1.0f / denominator;
    const int query = first_query + ty + i * kPlainSide;
    if (tx == 0 && first_column == 0 && query < sizes.length) {
      lse[(static_cast<int64_t>(batch) * sizes.num_heads + head) * sizes.length + query] =
          largest[i] * sizes.scale + logf(denominator);
    }
  }
  const int64_t out_row = static_cast<int64_t>(sizes.num_heads) * sizes.head_dim;
  store_plain_rows<kSums>(out + token * out_row + head * sizes.head_dim, out_row, first_query, sizes.length,
                          sizes.head_dim, sum_out, factor, ty, tx, first_column);
}

template <typename T, int kSums>
void launch_forward(T* out, float* lse, const AttentionInputs<T>& in, const AttentionSizes& sizes, AttentionGrid shape,
                    StreamHandle stream) {
  const int slices = plain_slices<kSums>(sizes.head_dim);
  const dim3 grid(static_cast<unsigned>((sizes.length + kPlainRows - 1) / kPlainRows),
                  static_cast<unsigned>(sizes.num_heads * slices), static_cast<unsigned>(shape.batch));
  LAUNCH((attention_plain_forward_kernel<T, kSums>), grid, dim3(kPlainThreads), shared_bytes(sizes.head_dim), stream,
         out, lse, in, sizes, slices, shape.dropout);
}

}  // namespace

template <>
void attention_forward_plain(float* out, float* lse, const AttentionInputs<float>& in, const AttentionSizes& sizes,
                             AttentionGrid grid, StreamHandle stream) {
  sizes.head_dim <= 64 ? launch_forward<float, 8>(out, lse, in, sizes, grid, stream)
                       : launch_forward<float, 16>(out, lse, in, sizes, grid, stream);
}
template <>
void attention_forward_plain(Bf16* out, float* lse, const AttentionInputs<Bf16>& in, const AttentionSizes& sizes,
                             AttentionGrid grid, StreamHandle stream) {
  launch_forward<Bf16, 16>(out, lse, in, sizes, grid, stream);
}
template <>
void attention_forward_plain(F16* out, float* lse, const AttentionInputs<F16>& in, const AttentionSizes& sizes,
                             AttentionGrid grid, StreamHandle stream) {
  launch_forward<F16, 16>(out, lse, in, sizes, grid, stream);
}

}  // namespace ashlar::kernels::cuda
