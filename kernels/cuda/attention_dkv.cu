// Gradients of keys and values through the tensor cores: a block of four warps holds keys of one head, walks over the
// query heads that read them and over their queries from the diagonal on, and keeps both sums in registers. Scores are
// computed with keys as rows, so that probabilities, and then their gradients, are the left operand of the next product
// as they lie in registers. Equations: Dao, arXiv:2307.08691, algorithm 2.
#include "kernels/cuda/attention_mma.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kQueries = 32;
constexpr int kStages = 2;
template <int kDim>
constexpr int kRowTiles = 128 / kDim;  // of 16 keys, per warp
template <int kDim>
constexpr int kKeys = kMmaWarps * 16 * kRowTiles<kDim>;
template <int kDim>
constexpr size_t kSharedBytes = (2 * kKeys<kDim> + kStages * 2 * kQueries) * kDim * 2 + kStages * 2 * kQueries *
                                                                                            sizeof(float);

// From scores and dout v^T to what dropout left of the probabilities (in s) and to the gradients of the scores (in dp).
template <bool kDropout, int kKeyTiles, int kTiles>
DEVICE_INLINE void softmax_backward(float (&s)[kKeyTiles][kTiles][4], float (&dp)[kKeyTiles][kTiles][4],
                                    const float* lse_log2, const float* delta, const AttentionSizes& sizes,
                                    int first_key, int first_query, uint32_t head, uint32_t sample, int lane) {
  if (first_key + kKeyTiles * 16 > first_query + 1) {
    mask_later_keys<true>(s, first_key, first_query, lane);
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int column = n * 8 + lane % 4 * 2;
    const float2 lse_pair = *reinterpret_cast<const float2*>(lse_log2 + column);
    const float2 delta_pair = *reinterpret_cast<const float2*>(delta + column);
#pragma unroll
    for (int m = 0; m < kKeyTiles; ++m) {
      uint32_t kept = 15;
      if (kDropout) {
        kept = keep_bits_of_keys(sizes.dropout, first_query + column, first_key + m * 16, head, sample, lane);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float p = exp2_approx(s[m][n][e] * sizes.scale_log2 - (e % 2 == 0 ? lse_pair.x : lse_pair.y));
        float slope = dp[m][n][e];
        if (kDropout) {
          const bool is_kept = (kept >> e & 1) != 0;
          slope = is_kept ? slope * sizes.dropout.keep_scale : 0.0f;
          s[m][n][e] = is_kept ? p : 0.0f;
        } else {
          s[m][n][e] = p;
        }
        dp[m][n][e] = p * (slope - (e % 2 == 0 ? delta_pair.x : delta_pair.y));
      }
    }
  }
}

template <typename T, int kDim, bool kDropout>
__global__ void __launch_bounds__(kMmaThreads)
    attention_dkv_kernel(AttentionGradients<T> gradients, AttentionInputs<T> in, AttentionSizes sizes) {
  constexpr int kKeyTiles = kRowTiles<kDim>;
  constexpr uint32_t kKeyBytes = kKeys<kDim> * kDim * 2;
  constexpr uint32_t kQueryBytes = kQueries * kDim * 2;
  SMEM_DYN(shared);
  const uint32_t k_tile = smem_u32(shared);
  const uint32_t v_tile = k_tile + kKeyBytes;
  const uint32_t q_tiles = v_tile + kKeyBytes;                  // [stages]
  const uint32_t dout_tiles = q_tiles + kStages * kQueryBytes;  // [stages]
  auto* const lse_rows =
      reinterpret_cast<float*>(shared + 2 * kKeyBytes + 2 * kStages * kQueryBytes);  // [stages, queries]
  float* const delta_rows = lse_rows + kStages * kQueries;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int first_key = static_cast<int>(blockIdx.x) * kKeys<kDim>;
  const int warp_key = first_key + warp * kKeyTiles * 16;
  const int batch = blockIdx.z;
  const int64_t token = static_cast<int64_t>(batch) * sizes.length;
  const int64_t kv_first = token * sizes.kv_row + static_cast<int64_t>(blockIdx.y) * sizes.head_dim;
  const int out_row = sizes.num_heads * sizes.head_dim;

  // Where the queries stand that are loaded next. Heads of the group and blocks of queries are added in ascending
  // order.
  const int last_head = (static_cast<int>(blockIdx.y) + 1) * sizes.group;
  int next_head = last_head - sizes.group;
  int next_query = first_key;
  int stage = 0;
  float next_lse = 0;
  float next_delta = 0;
  const auto load_queries = [&](int to) {
    load_tile<kDim, kQueries>(q_tiles + to * kQueryBytes, in.q + token * sizes.q_row + next_head * sizes.head_dim,
                              sizes.q_row, next_query, sizes.length, sizes.head_dim);
    load_tile<kDim, kQueries>(dout_tiles + to * kQueryBytes,
                              gradients.dout + token * out_row + next_head * sizes.head_dim, out_row, next_query,
                              sizes.length, sizes.head_dim);
    cp_async_commit();
    if (thread < kQueries) {
      const int query = next_query + thread;
      const int64_t row = (static_cast<int64_t>(batch) * sizes.num_heads + next_head) * sizes.length + query;
      // Queries past the end are zero, and so are all products with them.
      next_lse = query < sizes.length ? gradients.lse[row] * kLog2E : 0.0f;
      next_delta = query < sizes.length ? gradients.delta[row] : 0.0f;
    }
  };
  const auto keep_rows = [&](int to) {
    if (thread < kQueries) {
      lse_rows[to * kQueries + thread] = next_lse;
      delta_rows[to * kQueries + thread] = next_delta;
    }
  };

  load_tile<kDim, kKeys<kDim>>(k_tile, in.k + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim);
  load_tile<kDim, kKeys<kDim>>(v_tile, in.v + kv_first, sizes.kv_row, first_key, sizes.length, sizes.head_dim);
  load_queries(0);
  keep_rows(0);

  float dk[kKeyTiles][kDim / 8][4] = {};
  float dv[kKeyTiles][kDim / 8][4] = {};
  const uint32_t warp_offset = static_cast<uint32_t>(warp * kKeyTiles * 16 * kDim * 2);
#pragma unroll 1
  while (next_head < last_head) {
    const int head = next_head;
    const int query = next_query;
    next_query += kQueries;
    if (next_query >= sizes.length) {
      next_query = first_key;
      ++next_head;
    }
    cp_async_wait<0>();
    __syncthreads();  // this stage is here, and all warps are done with the other one
    if (next_head < last_head) {
      load_queries(1 - stage);
    }
    const uint32_t q_tile = q_tiles + stage * kQueryBytes;
    const uint32_t dout_tile = dout_tiles + stage * kQueryBytes;
    float s[kKeyTiles][kQueries / 8][4] = {};
    float dp[kKeyTiles][kQueries / 8][4] = {};
    multiply_rows<kDim, kKeyTiles, kQueries / 8, T>(s, k_tile + warp_offset, q_tile, lane);
    multiply_rows<kDim, kKeyTiles, kQueries / 8, T>(dp, v_tile + warp_offset, dout_tile, lane);
    softmax_backward<kDropout>(s, dp, lse_rows + stage * kQueries, delta_rows + stage * kQueries, sizes, warp_key,
                               query, sizes.dropout.first_head + head, sizes.dropout.first_sample + batch, lane);
    add_product<kDim, kKeyTiles, kQueries / 8, T>(dv, s, dout_tile, lane);
    add_product<kDim, kKeyTiles, kQueries / 8, T>(dk, dp, q_tile, lane);
    stage = 1 - stage;
    if (next_head < last_head) {
      keep_rows(stage);
    }
  }

  // The warp's own keys and values, which no other warp reads, make way for its results.
  float dk_factor[kKeyTiles][2];
  float dv_factor[kKeyTiles][2];
#pragma unroll
  for (int m = 0; m < kKeyTiles; ++m) {
    dk_factor[m][0] = dk_factor[m][1] = sizes.scale;
    dv_factor[m][0] = dv_factor[m][1] = kDropout ? sizes.dropout.keep_scale : 1.0f;
  }
  __syncwarp();
  store_rows<kDim, kKeyTiles>(gradients.dk + kv_first, sizes.kv_row, warp_key, sizes.length, sizes.head_dim, dk,
                              dk_factor, shared + warp_offset, lane);
  store_rows<kDim, kKeyTiles>(gradients.dv + kv_first, sizes.kv_row, warp_key, sizes.length, sizes.head_dim, dv,
                              dv_factor, shared + kKeyBytes + warp_offset, lane);
}

template <typename T, int kDim, bool kDropout>
void launch_dkv(const AttentionGradients<T>& gradients, const AttentionInputs<T>& in, const AttentionSizes& sizes,
                int batch, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>((sizes.length + kKeys<kDim> - 1) / kKeys<kDim>),
                  static_cast<unsigned>(sizes.num_heads / sizes.group), static_cast<unsigned>(batch));
  LAUNCH((attention_dkv_kernel<T, kDim, kDropout>), grid, dim3(kMmaThreads), kSharedBytes<kDim>, stream, gradients, in,
         sizes);
}

}  // namespace

template <typename T>
void attention_dkv_mma(const AttentionGradients<T>& gradients, const AttentionInputs<T>& in,
                       const AttentionSizes& sizes, AttentionGrid grid, StreamHandle stream) {
  if (sizes.head_dim <= 64) {
    grid.dropout ? launch_dkv<T, 64, true>(gradients, in, sizes, grid.batch, stream)
                 : launch_dkv<T, 64, false>(gradients, in, sizes, grid.batch, stream);
  } else {
    grid.dropout ? launch_dkv<T, 128, true>(gradients, in, sizes, grid.batch, stream)
                 : launch_dkv<T, 128, false>(gradients, in, sizes, grid.batch, stream);
  }
}

template void attention_dkv_mma(const AttentionGradients<Bf16>&, const AttentionInputs<Bf16>&, const AttentionSizes&,
                                AttentionGrid, StreamHandle);
template void attention_dkv_mma(const AttentionGradients<F16>&, const AttentionInputs<F16>&, const AttentionSizes&,
                                AttentionGrid, StreamHandle);

}  // namespace ashlar::kernels::cuda
