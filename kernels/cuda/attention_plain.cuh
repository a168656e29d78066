// Tiles of attention without tensor cores: 32 rows of fp32 in shared memory, 64 threads as 8 x 8. A thread computes
// scores of rows ty + 8 i and columns tx + 8 j, and sums of rows ty + 8 i and every eighth column of a slice. Heads of
// up to 256 values in slices of 8 kSums; blocks of other slices compute the same scores again.
#pragma once

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/philox.cuh"

namespace ashlar::kernels::cuda {

inline constexpr int kPlainRows = 32;
inline constexpr int kPlainSide = 8;
inline constexpr int kPlainThreads = kPlainSide * kPlainSide;
inline constexpr int kPlainEach = kPlainRows / kPlainSide;  // rows, and columns of scores, per thread
inline constexpr int kPlainScoreRow = kPlainRows + 1;

// Row length of a tile in shared memory: whole steps of 8 columns, and odd, so that 8 rows lie in different banks.
__host__ __device__ inline int plain_row(int head_dim) {
  return (head_dim + kPlainSide - 1) / kPlainSide * kPlainSide + 1;
}

// to [32, plain_row] = rows [first, first + 32) of from [length, head_dim], zero beyond both.
template <typename T>
DEVICE_INLINE void load_plain_tile(float* to, const T* from, int row_stride, int first, int length, int head_dim) {
  const int columns = plain_row(head_dim) - 1;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < kPlainRows; r += kPlainThreads / 32) {
    const T* source = from + static_cast<int64_t>(first + r) * row_stride;
    for (int d = static_cast<int>(threadIdx.x) % 32; d < columns; d += 32) {
      to[r * (columns + 1) + d] = first + r < length && d < head_dim ? to_float(source[d]) : 0.0f;
    }
  }
}

// s [i][j] = row ty + 8 i of a times row tx + 8 j of b.
DEVICE_INLINE void multiply_plain_rows(float (&s)[kPlainEach][kPlainEach], const float* a, const float* b, int ty,
                                       int tx, int head_dim) {
  const int row = plain_row(head_dim);
#pragma unroll
  for (int i = 0; i < kPlainEach; ++i) {
#pragma unroll
    for (int j = 0; j < kPlainEach; ++j) {
      s[i][j] = 0;
    }
  }
  for (int d = 0; d < head_dim; ++d) {
    float b_values[kPlainEach];
#pragma unroll
    for (int j = 0; j < kPlainEach; ++j) {
      b_values[j] = b[(tx + j * kPlainSide) * row + d];
    }
#pragma unroll
    for (int i = 0; i < kPlainEach; ++i) {
      const float a_value = a[(ty + i * kPlainSide) * row + d];
#pragma unroll
      for (int j = 0; j < kPlainEach; ++j) {
        s[i][j] += a_value * b_values[j];
      }
    }
  }
}

// sum [i][c] += sum over r of p[ty + 8 i][r] b[r][first_column + tx + 8 c], with p [32, 33] in shared memory.
template <int kSums>
DEVICE_INLINE void add_plain_product(float (&sum)[kPlainEach][kSums], const float* p, const float* b, int ty, int tx,
                                     int first_column, int head_dim) {
  const int row = plain_row(head_dim);
  for (int r = 0; r < kPlainRows; ++r) {
    float p_values[kPlainEach];
#pragma unroll
    for (int i = 0; i < kPlainEach; ++i) {
      p_values[i] = p[(ty + i * kPlainSide) * kPlainScoreRow + r];
    }
#pragma unroll
    for (int c = 0; c < kSums; ++c) {
      const int column = first_column + c * kPlainSide;
      if (column < head_dim) {
        const float b_value = b[r * row + column + tx];
#pragma unroll
        for (int i = 0; i < kPlainEach; ++i) {
          sum[i][c] += p_values[i] * b_value;
        }
      }
    }
  }
}

template <int kSums, typename T>
DEVICE_INLINE void store_plain_rows(T* to, int64_t row_stride, int first, int length, int head_dim,
                                    const float (&sum)[kPlainEach][kSums], const float (&factor)[kPlainEach], int ty,
                                    int tx, int first_column) {
#pragma unroll
  for (int i = 0; i < kPlainEach; ++i) {
    const int row = first + ty + i * kPlainSide;
#pragma unroll
    for (int c = 0; c < kSums; ++c) {
      const int column = first_column + c * kPlainSide + tx;
      if (row < length && column < head_dim) {
        to[row * row_stride + column] = from_float<T>(sum[i][c] * factor[i]);
      }
    }
  }
}

// The dropout factor of one element. Each thread makes the whole block of Philox for it: this form is not the fast one.
DEVICE_INLINE float plain_dropout(const AttentionDropout& dropout, int key, int query, int head, int batch) {
  const PhiloxWords counter = {{static_cast<uint32_t>(key) / 4, static_cast<uint32_t>(query),
                                dropout.first_head + static_cast<uint32_t>(head),
                                dropout.first_sample + static_cast<uint32_t>(batch)}};
  const PhiloxWords words = philox_4x32_10(counter, dropout.key0, dropout.key1);
  const uint32_t low = key % 2 == 0 ? words.w[0] : words.w[1];
  const uint32_t high = key % 2 == 0 ? words.w[2] : words.w[3];
  return (key % 4 < 2 ? low : high) >= dropout.threshold ? dropout.keep_scale : 0.0f;
}

// The values of one head that blockIdx.y names together with the head.
template <int kSums>
constexpr int kPlainSlice = kPlainSide* kSums;
template <int kSums>
int plain_slices(int head_dim) {
  return (head_dim + kPlainSlice<kSums> - 1) / kPlainSlice<kSums>;
}

}  // namespace ashlar::kernels::cuda
