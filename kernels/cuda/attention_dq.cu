// Gradients of queries through the tensor cores: a block of four warps holds 128 queries of one head, as in forward,
// and walks over the keys in ascending order. Keys and values of the next block arrive while one is computed where
// shared memory has room for both; with 128 values per head it has not, and the other block of the multiprocessor fills
// in.
#include "kernels/cuda/attention_mma.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kQueries = 128;
constexpr int kRowTiles = kQueries / kMmaWarps / 16;
template <int kDim, bool kDropout>
constexpr int kKeys = kDropout ? 32 : 4096 / kDim;
template <int kDim>
constexpr int kStages = kDim <= 64 ? 2 : 1;
template <int kDim, bool kDropout>
constexpr size_t kSharedBytes = (2 * kQueries + kStages<kDim> * 2 * kKeys<kDim, kDropout>)*kDim * 2;

template <typename T, int kDim, bool kDropout>
__global__ void __launch_bounds__(kMmaThreads)
    attention_dq_kernel(AttentionGradients<T> gradients, AttentionInputs<T> in, AttentionSizes sizes) {
  constexpr uint32_t kQueryBytes = kQueries * kDim * 2;
  constexpr uint32_t kKeyBytes = kKeys<kDim, kDropout> * kDim * 2;
  constexpr int kTiles = kKeys<kDim, kDropout> / 8;
  SMEM_DYN(shared);
  const uint32_t q_tile = smem_u32(shared);
  const uint32_t dout_tile = q_tile + kQueryBytes;
  const uint32_t k_tiles = dout_tile + kQueryBytes;              // [stages]
  const uint32_t v_tiles = k_tiles + kStages<kDim> * kKeyBytes;  // [stages]
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  // The last queries see the most keys: they start first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int warp_query = first_query + warp * kRowTiles * 16;
  const int64_t token = static_cast<int64_t>(batch) * sizes.length;
  const int64_t q_first = token * sizes.q_row + head * sizes.head_dim;
  const int64_t kv_first = token * sizes.kv_row + head / sizes.group * sizes.head_dim;
  const int out_row = sizes.num_heads * sizes.head_dim;

  const auto load_keys = [&](int first_key, int stage) {
    load_tile<kDim, kKeys<kDim, kDropout>>(k_tiles + stage * kKeyBytes, in.k + kv_first, sizes.kv_row, first_key,
                                           sizes.length, sizes.head_dim);
    load_tile<kDim, kKeys<kDim, kDropout>>(v_tiles + stage * kKeyBytes, in.v + kv_first, sizes.kv_row, first_key,
                                           sizes.length, sizes.head_dim);
    cp_async_commit();
  };
  load_tile<kDim, kQueries>(q_tile, in.q + q_first, sizes.q_row, first_query, sizes.length, sizes.head_dim);
  load_tile<kDim, kQueries>(dout_tile, gradients.dout + token * out_row + head * sizes.head_dim, out_row, first_query,
                            sizes.length, sizes.head_dim);
  load_keys(0, 0);

  float lse_log2[kRowTiles][2];
  float delta[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + m * 16 + half * 8 + lane / 4;
      const int64_t row = (static_cast<int64_t>(batch) * sizes.num_heads + head) * sizes.length + query;
      lse_log2[m][half] = query < sizes.length ? gradients.lse[row] * kLog2E : 0.0f;
      delta[m][half] = query < sizes.length ? gradients.delta[row] : 0.0f;
    }
  }

  float dq[kRowTiles][kDim / 8][4] = {};
  const uint32_t warp_offset = static_cast<uint32_t>(warp * kRowTiles * 16 * kDim * 2);
  const int num_keys = min(first_query + kQueries, sizes.length);
  int stage = 0;
#pragma unroll 1
  for (int first_key = 0; first_key < num_keys; first_key += kKeys<kDim, kDropout>) {
    cp_async_wait<0>();
    __syncthreads();  // this stage is here, and all warps are done with the other one
    if (kStages<kDim> == 2 && first_key + kKeys<kDim, kDropout> < num_keys) {
      load_keys(first_key + kKeys<kDim, kDropout>, 1 - stage);
    }
    const uint32_t k_tile = k_tiles + stage * kKeyBytes;
    const uint32_t v_tile = v_tiles + stage * kKeyBytes;
    float s[kRowTiles][kTiles][4] = {};
    float dp[kRowTiles][kTiles][4] = {};
    multiply_rows<kDim, kRowTiles, kTiles, T>(s, q_tile + warp_offset, k_tile, lane);
    multiply_rows<kDim, kRowTiles, kTiles, T>(dp, dout_tile + warp_offset, v_tile, lane);
    if (first_key + kTiles * 8 > warp_query + 1) {
      mask_later_keys(s, first_key, warp_query, lane);
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const int query = warp_query + m * 16 + lane / 4;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        uint32_t kept = 15;
        if (kDropout) {
          kept = keep_bits_of_queries(sizes.dropout, query, first_key + n * 8, sizes.dropout.first_head + head,
                                      sizes.dropout.first_sample + batch, lane);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float p = exp2_approx(s[m][n][e] * sizes.scale_log2 - lse_log2[m][e / 2]);
          float slope = dp[m][n][e];
          if (kDropout) {
            slope = (kept >> e & 1) != 0 ? slope * sizes.dropout.keep_scale : 0.0f;
          }
          s[m][n][e] = p * (slope - delta[m][e / 2]);
        }
      }
    }
    add_product<kDim, kRowTiles, kTiles, T>(dq, s, k_tile, lane);
    if (kStages<kDim> == 2) {
      stage = 1 - stage;
    } else if (first_key + kKeys<kDim, kDropout> < num_keys) {
      __syncthreads();  // all warps are done with this block
      load_keys(first_key + kKeys<kDim, kDropout>, 0);
    }
  }

  // The warp's own queries, which no other warp reads, make way for its results.
  float factor[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    factor[m][0] = factor[m][1] = sizes.scale;
  }
  __syncwarp();
  store_rows<kDim, kRowTiles>(gradients.dq + q_first, sizes.q_row, warp_query, sizes.length, sizes.head_dim, dq, factor,
                              shared + warp_offset, lane);
}

template <typename T, int kDim, bool kDropout>
void launch_dq(const AttentionGradients<T>& gradients, const AttentionInputs<T>& in, const AttentionSizes& sizes,
               int batch, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>((sizes.length + kQueries - 1) / kQueries),
                  static_cast<unsigned>(sizes.num_heads), static_cast<unsigned>(batch));
  LAUNCH((attention_dq_kernel<T, kDim, kDropout>), grid, dim3(kMmaThreads), (kSharedBytes<kDim, kDropout>), stream,
         gradients, in, sizes);
}

}  // namespace

template <typename T>
void attention_dq_mma(const AttentionGradients<T>& gradients, const AttentionInputs<T>& in, const AttentionSizes& sizes,
                      AttentionGrid grid, StreamHandle stream) {
  if (sizes.head_dim <= 64) {
    grid.dropout ? launch_dq<T, 64, true>(gradients, in, sizes, grid.batch, stream)
                 : launch_dq<T, 64, false>(gradients, in, sizes, grid.batch, stream);
  } else {
    grid.dropout ? launch_dq<T, 128, true>(gradients, in, sizes, grid.batch, stream)
                 : launch_dq<T, 128, false>(gradients, in, sizes, grid.batch, stream);
  }
}

template void attention_dq_mma(const AttentionGradients<Bf16>&, const AttentionInputs<Bf16>&, const AttentionSizes&,
                               AttentionGrid, StreamHandle);
template void attention_dq_mma(const AttentionGradients<F16>&, const AttentionInputs<F16>&, const AttentionSizes&,
                               AttentionGrid, StreamHandle);

}  // namespace ashlar::kernels::cuda
