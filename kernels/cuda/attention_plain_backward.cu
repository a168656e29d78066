#include "kernels/cuda/attention_plain.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

size_t shared_bytes(int head_dim) {
  return static_cast<size_t>(4 * kPlainRows * plain_row(head_dim) + 2 * kPlainRows * kPlainScoreRow) * sizeof(float);
}

// Tiles of one head and what a pair of blocks of queries and keys gives: probabilities after dropout and gradients of
// scores, [queries, keys] in shared memory, or [keys, queries] where transposed.
struct PlainTiles {
  float* q;
  float* k;
  float* v;
  float* dout;
  float* p;
  float* slope;
};

DEVICE_INLINE PlainTiles plain_tiles(unsigned char* shared, int head_dim) {
  const int tile = kPlainRows * plain_row(head_dim);
  auto* const first = reinterpret_cast<float*>(shared);
  float* const p = first + 4 * tile;
  return {first, first + tile, first + 2 * tile, first + 3 * tile, p, p + kPlainRows * kPlainScoreRow};
}

template <bool kTransposed>
DEVICE_INLINE void plain_softmax_backward(const PlainTiles& tiles, const float* lse, const float* delta,
                                          const AttentionSizes& sizes, int first_query, int first_key, int head,
                                          int batch, bool dropout, int ty, int tx) {
  float s[kPlainEach][kPlainEach];
  float dp[kPlainEach][kPlainEach];
  multiply_plain_rows(s, tiles.q, tiles.k, ty, tx, sizes.head_dim);
  multiply_plain_rows(dp, tiles.dout, tiles.v, ty, tx, sizes.head_dim);
#pragma unroll
  for (int i = 0; i < kPlainEach; ++i) {
    const int query_row = ty + i * kPlainSide;
    const int query = first_query + query_row;
    const bool inside = query < sizes.length;
    const int64_t row = (static_cast<int64_t>(batch) * sizes.num_heads + head) * sizes.length + query;
    const float lse_log2 = inside ? lse[row] * kLog2E : 0.0f;
    const float shared_slope = inside ? delta[row] : 0.0f;
#pragma unroll
    for (int j = 0; j < kPlainEach; ++j) {
      const int key_row = tx + j * kPlainSide;
      const int key = first_key + key_row;
      const float p = key > query || !inside ? 0.0f : exp2_approx(s[i][j] * sizes.scale_log2 - lse_log2);
      const float factor = dropout ? plain_dropout(sizes.dropout, key, query, head, batch) : 1.0f;
      const int at = kTransposed ? key_row * kPlainScoreRow + query_row : query_row * kPlainScoreRow + key_row;
      tiles.p[at] = p * factor;
      tiles.slope[at] = p * (dp[i][j] * factor - shared_slope);
    }
  }
}

// A block holds 32 keys of one head and walks over the query heads that read them, and over their queries from the
// diagonal on.
template <typename T, int kSums>
__global__ void __launch_bounds__(kPlainThreads)
    attention_plain_dkv_kernel(AttentionGradients<T> gradients, AttentionInputs<T> in, AttentionSizes sizes,
                               int num_slices, bool dropout) {
  SMEM_DYN(shared);
  const PlainTiles tiles = plain_tiles(shared, sizes.head_dim);
  const int tx = static_cast<int>(threadIdx.x) % kPlainSide;
  const int ty = static_cast<int>(threadIdx.x) / kPlainSide;
  const int kv_head = static_cast<int>(blockIdx.y) / num_slices;
  const int first_column = static_cast<int>(blockIdx.y) % num_slices * kPlainSlice<kSums>;
  const int batch = blockIdx.z;
  const int first_key = static_cast<int>(blockIdx.x) * kPlainRows;
  const int64_t token = static_cast<int64_t>(batch) * sizes.length;
  const int64_t kv_first = token * sizes.kv_row + kv_head * sizes.head_dim;
  const int out_row = sizes.num_heads * sizes.head_dim;
  load_plain_tile(tiles.k, in.k + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim);
  load_plain_tile(tiles.v, in.v + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim);

  float dk[kPlainEach][kSums] = {};
  float dv[kPlainEach][kSums] = {};
  for (int head = kv_head * sizes.group; head < (kv_head + 1) * sizes.group; ++head) {
    for (int first_query = first_key; first_query < sizes.length; first_query += kPlainRows) {
      load_plain_tile(tiles.q, in.q + token * sizes.q_row + head * sizes.head_dim, sizes.q_row, first_query,
                      sizes.length, sizes.head_dim);
      load_plain_tile(tiles.dout, gradients.dout + token * out_row + head * sizes.head_dim, out_row, first_query,
                      sizes.length, sizes.head_dim);
      __syncthreads();
      plain_softmax_backward<true>(tiles, gradients.lse, gradients.delta, sizes, first_query, first_key, head, batch,
                                   dropout, ty, tx);
      __syncthreads();
      add_plain_product<kSums>(dv, tiles.p, tiles.dout, ty, tx, first_column, sizes.head_dim);
      add_plain_product<kSums>(dk, tiles.slope, tiles.q, ty, tx, first_column, sizes.head_dim);
      __syncthreads();
    }
  }
  float dk_factor[kPlainEach];
  float dv_factor[kPlainEach];
#pragma unroll
  for (int i = 0; i < kPlainEach; ++i) {
    dk_factor[i] = sizes.scale;
    dv_factor[i] = 1;
  }
  store_plain_rows<kSums>(gradients.dk + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim, dk, dk_factor,
                          ty, tx, first_column);
  store_plain_rows<kSums>(gradients.dv + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim, dv, dv_factor,
                          ty, tx, first_column);
}

// A block holds 32 queries of one head and walks over the keys in ascending order.
template <typename T, int kSums>
__global__ void __launch_bounds__(kPlainThreads)
    attention_plain_dq_kernel(AttentionGradients<T> gradients, AttentionInputs<T> in, AttentionSizes sizes,
                              int num_slices, bool dropout) {
  SMEM_DYN(shared);
  const PlainTiles tiles = plain_tiles(shared, sizes.head_dim);
  const int tx = static_cast<int>(threadIdx.x) % kPlainSide;
  const int ty = static_cast<int>(threadIdx.x) / kPlainSide;
  const int head = static_cast<int>(blockIdx.y) / num_slices;
  const int first_column = static_cast<int>(blockIdx.y) % num_slices * kPlainSlice<kSums>;
  const int batch = blockIdx.z;
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kPlainRows;
  const int64_t token = static_cast<int64_t>(batch) * sizes.length;
  const int64_t q_first = token * sizes.q_row + head * sizes.head_dim;
  const int64_t kv_first = token * sizes.kv_row + head / sizes.group * sizes.head_dim;
  const int out_row = sizes.num_heads * sizes.head_dim;
  load_plain_tile(tiles.q, in.q + q_first, sizes.q_row, first_query, sizes.length, sizes.head_dim);
  load_plain_tile(tiles.dout, gradients.dout + token * out_row + head * sizes.head_dim, out_row, first_query,
                  sizes.length, sizes.head_dim);
  float dq[kPlainEach][kSums] = {};
  for (int first_key = 0; first_key <= first_query; first_key += kPlainRows) {
    load_plain_tile(tiles.k, in.k + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim);
    load_plain_tile(tiles.v, in.v + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim);
    __syncthreads();
    plain_softmax_backward<false>(tiles, gradients.lse, gradients.delta, sizes, first_query, first_key, head, batch,
                                  dropout, ty, tx);
    __syncthreads();
    add_plain_product<kSums>(dq, tiles.slope, tiles.k, ty, tx, first_column, sizes.head_dim);
    __syncthreads();
  }
  float factor[kPlainEach];
#pragma unroll
  for (int i = 0; i < kPlainEach; ++i) {
    factor[i] = sizes.scale;
  }
  store_plain_rows<kSums>(gradients.dq + q_first, sizes.q_row, first_query, sizes.length, sizes.head_dim, dq, factor,
                          ty, tx, first_column);
}

template <typename T, int kSums>
void launch_backward(const AttentionGradients<T>& gradients, const AttentionInputs<T>& in, const AttentionSizes& sizes,
                     AttentionGrid shape, StreamHandle stream) {
  const int slices = plain_slices<kSums>(sizes.head_dim);
  dim3 grid(static_cast<unsigned>((sizes.length + kPlainRows - 1) / kPlainRows),
            static_cast<unsigned>(sizes.num_heads / sizes.group * slices), static_cast<unsigned>(shape.batch));
  LAUNCH((attention_plain_dkv_kernel<T, kSums>), grid, dim3(kPlainThreads), shared_bytes(sizes.head_dim), stream,
         gradients, in, sizes, slices, shape.dropout);
  grid.y = static_cast<unsigned>(sizes.num_heads * slices);
  LAUNCH((attention_plain_dq_kernel<T, kSums>), grid, dim3(kPlainThreads), shared_bytes(sizes.head_dim), stream,
         gradients, in, sizes, slices, shape.dropout);
}

}  // namespace

template <>
void attention_backward_plain(const AttentionGradients<float>& gradients, const AttentionInputs<float>& in,
                              const AttentionSizes& sizes, AttentionGrid grid, StreamHandle stream) {
  sizes.head_dim <= 64 ? launch_backward<float, 8>(gradients, in, sizes, grid, stream)
                       : launch_backward<float, 16>(gradients, in, sizes, grid, stream);
}
template <>
void attention_backward_plain(const AttentionGradients<Bf16>& gradients, const AttentionInputs<Bf16>& in,
                              const AttentionSizes& sizes, AttentionGrid grid, StreamHandle stream) {
  launch_backward<Bf16, 16>(gradients, in, sizes, grid, stream);
}
template <>
void attention_backward_plain(const AttentionGradients<F16>& gradients, const AttentionInputs<F16>& in,
                              const AttentionSizes& sizes, AttentionGrid grid, StreamHandle stream) {
  launch_backward<F16, 16>(gradients, in, sizes, grid, stream);
}

}  // namespace ashlar::kernels::cuda
