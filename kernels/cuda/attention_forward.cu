// Forward through the tensor cores: a block of four warps holds 128 queries of one head, a warp 32 of them, and walks
// over the keys from the diagonal down. Values of a key block arrive while its scores are computed, the keys of the
// next block while the softmax runs.
#include "kernels/cuda/attention_mma.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kForwardQueries = 128;
constexpr int kForwardRowTiles = kForwardQueries / kMmaWarps / 16;

// Keys per block: as many as the registers of a lane hold scores for.
template <int kDim, bool kDropout>
constexpr int kForwardKeys = (kDropout ? 64 : 128) * 64 / kDim;

template <int kDim, bool kDropout>
constexpr size_t kForwardSharedBytes = (kForwardQueries + 2 * kForwardKeys<kDim, kDropout>)*kDim * 2;

// Turns scores into exp(score - largest), and brings what has been summed to the new largest.
template <int kRowTiles, int kTiles, int kDimTiles>
DEVICE_INLINE void online_softmax(float (&s)[kRowTiles][kTiles][4], float (&out)[kRowTiles][kDimTiles][4],
                                  float (&largest)[kRowTiles][2], float (&sum)[kRowTiles][2], float scale_log2) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = largest[m][half];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        x = fmaxf(x, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
      }
      x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
      x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
      const float offset = x == -INFINITY ? 0.0f : x * scale_log2;  // a row whose keys are all in blocks to come
      const float rescale = exp2_approx(largest[m][half] * scale_log2 - offset);
      largest[m][half] = x;
      float block_sum = 0;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; ++e) {
          s[m][n][e] = exp2_approx(s[m][n][e] * scale_log2 - offset);
          block_sum += s[m][n][e];
        }
      }
      sum[m][half] = sum[m][half] * rescale + block_sum;
#pragma unroll
      for (int n = 0; n < kDimTiles; ++n) {
        out[m][n][half * 2] *= rescale;
        out[m][n][half * 2 + 1] *= rescale;
      }
    }
  }
}

template <typename T, int kDim, bool kDropout>
__global__ void __launch_bounds__(kMmaThreads)
    attention_forward_kernel(T* out, float* lse, AttentionInputs<T> in, AttentionSizes sizes) {
  constexpr int kKeys = kForwardKeys<kDim, kDropout>;
  constexpr int kRowTiles = kForwardRowTiles;
  SMEM_DYN(shared);
  const uint32_t q_tile = smem_u32(shared);
  const uint32_t k_tile = q_tile + kForwardQueries * kDim * 2;
  const uint32_t v_tile = k_tile + kKeys * kDim * 2;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  // The last queries see the most keys: they start first.
  const int first_query = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kForwardQueries;
  const int warp_query = first_query + warp * kRowTiles * 16;
  const int64_t token = static_cast<int64_t>(batch) * sizes.length;
  const T* q = in.q + token * sizes.q_row + head * sizes.head_dim;
  const int64_t kv_first = token * sizes.kv_row + head / sizes.group * sizes.head_dim;

  const uint32_t warp_q_tile = q_tile + warp * kRowTiles * 16 * kDim * 2;
  const int num_keys = min(first_query + kForwardQueries, sizes.length);
  int block = (num_keys + kKeys - 1) / kKeys - 1;
  load_tile<kDim, kForwardQueries>(q_tile, q, sizes.q_row, first_query, sizes.length, sizes.head_dim);
  load_tile<kDim, kKeys>(k_tile, in.k + kv_first, sizes.kv_row, block * kKeys, sizes.length, sizes.head_dim);
  cp_async_commit();

  float sum_out[kRowTiles][kDim / 8][4] = {};
  float sum[kRowTiles][2] = {};
  float largest[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    largest[m][0] = largest[m][1] = -INFINITY;
  }

#pragma unroll 1
  for (; block >= 0; --block) {
    cp_async_wait<0>();
    __syncthreads();  // keys are here, and all warps are done with the values before
    load_tile<kDim, kKeys>(v_tile, in.v + kv_first, sizes.kv_row, block * kKeys, sizes.length, sizes.head_dim);
    cp_async_commit();
    float s[kRowTiles][kKeys / 8][4] = {};
    multiply_rows<kDim, kRowTiles, kKeys / 8, T>(s, warp_q_tile, k_tile, lane);
    cp_async_wait<0>();
    __syncthreads();  // values are here, and all warps are done with the keys
    if (block > 0) {
      load_tile<kDim, kKeys>(k_tile, in.k + kv_first, sizes.kv_row, (block - 1) * kKeys, sizes.length, sizes.head_dim);
      cp_async_commit();
    }
    // Only blocks that reach past the first query hold keys to mask; those past the sequence are among them. (One
    // loop with this test inside needs fewer registers than two loops.)
    if ((block + 1) * kKeys > first_query + 1) {
      mask_later_keys(s, block * kKeys, warp_query, lane);
    }
    online_softmax(s, sum_out, largest, sum, sizes.scale_log2);
    if (kDropout) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          const uint32_t kept =
              keep_bits_of_queries(sizes.dropout, warp_query + m * 16 + lane / 4, block * kKeys + n * 8,
                                   sizes.dropout.first_head + head, sizes.dropout.first_sample + batch, lane);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            s[m][n][e] = (kept >> e & 1) != 0 ? s[m][n][e] : 0.0f;
          }
        }
      }
    }
    add_product<kDim, kRowTiles, kKeys / 8, T>(sum_out, s, v_tile, lane);
  }

  float factor[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float denominator = sum[m][half];
      denominator += __shfl_xor_sync(kAllLanes, denominator, 1);
      denominator += __shfl_xor_sync(kAllLanes, denominator, 2);
      factor[m][half] = (kDropout ? sizes.dropout.keep_scale : 1.0f) / denominator;
      const int query = warp_query + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && query < sizes.length) {
        lse[(static_cast<int64_t>(batch) * sizes.num_heads + head) * sizes.length + query] =
            largest[m][half] * sizes.scale + logf(denominator);
      }
    }
  }
  // The warp's own queries, which no other warp reads, make way for its results.
  const int64_t out_row = static_cast<int64_t>(sizes.num_heads) * sizes.head_dim;
  __syncwarp();
  store_rows<kDim, kRowTiles>(out + token * out_row + head * sizes.head_dim, out_row, warp_query, sizes.length,
                              sizes.head_dim, sum_out, factor, shared + warp * kRowTiles * 16 * kDim * 2, lane);
}

template <typename T, int kDim, bool kDropout>
void launch_forward(T* out, float* lse, const AttentionInputs<T>& in, const AttentionSizes& sizes, int batch,
                    StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>((sizes.length + kForwardQueries - 1) / kForwardQueries),
                  static_cast<unsigned>(sizes.num_heads), static_cast<unsigned>(batch));
  LAUNCH((attention_forward_kernel<T, kDim, kDropout>), grid, dim3(kMmaThreads), (kForwardSharedBytes<kDim, kDropout>),
         stream, out, lse, in, sizes);
}

}  // namespace

template <typename T>
void attention_forward_mma(T* out, float* lse, const AttentionInputs<T>& in, const AttentionSizes& sizes,
                           AttentionGrid grid, StreamHandle stream) {
  if (sizes.head_dim <= 64) {
    grid.dropout ? launch_forward<T, 64, true>(out, lse, in, sizes, grid.batch, stream)
                 : launch_forward<T, 64, false>(out, lse, in, sizes, grid.batch, stream);
  } else {
    grid.dropout ? launch_forward<T, 128, true>(out, lse, in, sizes, grid.batch, stream)
                 : launch_forward<T, 128, false>(out, lse, in, sizes, grid.batch, stream);
  }
}

template void attention_forward_mma(Bf16*, float*, const AttentionInputs<Bf16>&, const AttentionSizes&, AttentionGrid,
                                    StreamHandle);
template void attention_forward_mma(F16*, float*, const AttentionInputs<F16>&, const AttentionSizes&, AttentionGrid,
                                    StreamHandle);

}  // namespace ashlar::kernels::cuda
