// Tiles and fragments of attention through the tensor cores (mma.m16n8k16). A tile is rows of kDim 16-bit values, zero
// beyond the head's values and beyond the sequence.
#pragma once

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/philox.cuh"

namespace ashlar::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr int kMmaThreads = 128;
inline constexpr int kMmaWarps = kMmaThreads / 32;

// d [16,8] += a [16,16] b [16,8]
DEVICE_INLINE void mma(Bf16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_bf16(d, a, b0, b1);
}
DEVICE_INLINE void mma(F16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_f16(d, a, b0, b1);
}

// Bytes from the start of a tile to 16-byte chunk `chunk` of a row. The exclusive or spreads eight rows over all banks.
template <int kDim>
DEVICE_INLINE uint32_t chunk_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * (kDim / 8) + (chunk ^ (row & 7))) * 16;
}

// Starts copying rows [first, first + kRows) of a matrix [length, head_dim] into a tile: by all threads of the block.
template <int kDim, int kRows, typename T>
DEVICE_INLINE void load_tile(uint32_t tile, const T* from, int row_stride, int first, int length, int head_dim) {
  constexpr int kChunks = kDim / 8;
  constexpr int kStep = kMmaThreads / kChunks;
  static_assert(kStep % 8 == 0 && kRows % kStep == 0, "the swizzle of a thread is the same for all of its rows");
  const int thread = threadIdx.x;
  const int row = thread / kChunks;
  const int chunk = thread % kChunks;
  const bool inside = chunk * 8 < head_dim;
  const T* source = from + static_cast<int64_t>(first + row) * row_stride + chunk * 8;
  tile += chunk_offset<kDim>(row, chunk);
#pragma unroll
  for (int i = 0; i < kRows; i += kStep) {
    const bool valid = inside && first + row + i < length;
    cp_async16(tile + static_cast<uint32_t>(i * kDim * 2), source + static_cast<int64_t>(i) * row_stride, valid);
  }
}

// Scores of kRowTiles x 16 rows of a against 8 kTiles rows of b, both over kDim: s += a b^T.
template <int kDim, int kRowTiles, int kTiles, typename T>
DEVICE_INLINE void multiply_rows(float (&s)[kRowTiles][kTiles][4], uint32_t a_tile, uint32_t b_tile, int lane) {
  const uint32_t a_lane = chunk_offset<kDim>(lane % 16, lane / 16);
  const uint32_t b_lane = chunk_offset<kDim>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      ldmatrix_x4(a[m], a_tile + (a_lane ^ (k * 32)) + m * 16 * kDim * 2);
    }
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, b_tile + (b_lane ^ (k * 32)) + n * 16 * kDim * 2);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma(T(), s[m][n * 2], a[m], b[0], b[1]);
        mma(T(), s[m][n * 2 + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// sum [rows, kDim] += p [rows, 8 kTiles] b [8 kTiles, kDim], with p rounded to T: accumulators of one product are, in
// pairs, the a operand of the next.
template <int kDim, int kRowTiles, int kTiles, typename T>
DEVICE_INLINE void add_product(float (&sum)[kRowTiles][kDim / 8][4], const float (&p)[kRowTiles][kTiles][4],
                               uint32_t b_tile, int lane) {
  const uint32_t b_lane = chunk_offset<kDim>(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      a[m][0] = pack_pair<T>(p[m][k * 2][0], p[m][k * 2][1]);
      a[m][1] = pack_pair<T>(p[m][k * 2][2], p[m][k * 2][3]);
      a[m][2] = pack_pair<T>(p[m][k * 2 + 1][0], p[m][k * 2 + 1][1]);
      a[m][3] = pack_pair<T>(p[m][k * 2 + 1][2], p[m][k * 2 + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, b_tile + (b_lane ^ (n * 32)) + k * 16 * kDim * 2);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma(T(), sum[m][n * 2], a[m], b[0], b[1]);
        mma(T(), sum[m][n * 2 + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Scores of keys after their query become -infinity. kKeysAreRows: rows of s are keys and columns queries, else the
// other way round.
template <bool kKeysAreRows = false, int kRowTiles, int kTiles>
DEVICE_INLINE void mask_later_keys(float (&s)[kRowTiles][kTiles][4], int first_key, int first_query, int lane) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = m * 16 + e / 2 * 8 + lane / 4;
        const int column = n * 8 + lane % 4 * 2 + e % 2;
        const int key = first_key + (kKeysAreRows ? row : column);
        const int query = first_query + (kKeysAreRows ? column : row);
        s[m][n][e] = key > query ? -INFINITY : s[m][n][e];
      }
    }
  }
}

// Rows [first, first + 16 kRowTiles) of a matrix [length, head_dim] = factor * sum, by one warp and through
// `staging`, its own tile of as many rows, which none of its lanes may still be reading.
template <int kDim, int kRowTiles, typename T>
DEVICE_INLINE void store_rows(T* to, int64_t row_stride, int first, int length, int head_dim,
                              const float (&sum)[kRowTiles][kDim / 8][4], const float (&factor)[kRowTiles][2],
                              unsigned char* staging, int lane) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const uint32_t pair =
            pack_pair<T>(sum[m][n][half * 2] * factor[m][half], sum[m][n][half * 2 + 1] * factor[m][half]);
        *reinterpret_cast<uint32_t*>(staging + chunk_offset<kDim>(row, n) + lane % 4 * 4) = pair;
      }
    }
  }
  __syncwarp();
  constexpr int kChunks = kDim / 8;
#pragma unroll
  for (int i = 0; i < kRowTiles * 16 * kChunks / 32; ++i) {
    const int row = (i * 32 + lane) / kChunks;
    const int chunk = lane % kChunks;
    if (first + row < length && chunk * 8 < head_dim) {
      store16(to + (first + row) * row_stride + chunk * 8,
              *reinterpret_cast<const uint4*>(staging + chunk_offset<kDim>(row, chunk)));
    }
  }
}

// Four bits: whether keys 4 key_group + 0..3 are kept for this query.
DEVICE_INLINE uint32_t keep_bits(const AttentionDropout& dropout, int key_group, int query, uint32_t head,
                                 uint32_t sample) {
  const PhiloxWords counter = {{static_cast<uint32_t>(key_group), static_cast<uint32_t>(query), head, sample}};
  const PhiloxWords words = philox_4x32_10(counter, dropout.key0, dropout.key1);
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    bits |= (words.w[i] >= dropout.threshold ? 1u : 0u) << i;
  }
  return bits;
}

// Which of the four accumulators of a lane are kept, as bits, in a product of queries (rows `query` and `query` + 8 are
// this lane's) and keys (`first_key` is the tile's first, a multiple of 8). Two lanes share two blocks of Philox, so
// each makes one.
DEVICE_INLINE uint32_t keep_bits_of_queries(const AttentionDropout& dropout, int query, int first_key, uint32_t head,
                                            uint32_t sample, int lane) {
  const bool odd = lane % 2 != 0;
  const uint32_t mine = keep_bits(dropout, first_key / 4 + lane % 4 / 2, query + (odd ? 8 : 0), head, sample);
  const uint32_t other = __shfl_xor_sync(kAllLanes, mine, 1);
  const int shift = odd ? 2 : 0;
  const uint32_t upper = (odd ? other : mine) >> shift & 3;
  const uint32_t lower = (odd ? mine : other) >> shift & 3;
  return upper | lower << 2;
}

// The same in a product of keys (rows; `first_key` is the tile's first, a multiple of 16) and queries (columns `query`
// and `query` + 1 are this lane's). Four lanes share four blocks.
DEVICE_INLINE uint32_t keep_bits_of_keys(const AttentionDropout& dropout, int query, int first_key, uint32_t head,
                                         uint32_t sample, int lane) {
  const int key = lane / 4 % 4;  // within its four; also the number of the accumulator whose block this lane makes
  const int key_group = first_key / 4 + lane / 16 + key / 2 * 2;
  uint32_t bits = keep_bits(dropout, key_group, query + key % 2, head, sample) << (key * 4);
  bits |= __shfl_xor_sync(kAllLanes, bits, 4);
  bits |= __shfl_xor_sync(kAllLanes, bits, 8);
  bits >>= key;
  return (bits & 1) | (bits >> 3 & 2) | (bits >> 6 & 4) | (bits >> 9 & 8);
}

}  // namespace ashlar::kernels::cuda
