#include "kernels/cpu/half_matmul.h"

#include <algorithm>
#include <memory>

#include "kernels/cpu/element.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/sgemm.h"

namespace ashlar::kernels::cpu {
namespace {

// Large enough that converting costs little beside multiplying (each element is converted once per 512 products), small
// enough for the caches.
constexpr int64_t kRows = 512;
constexpr int64_t kColumns = 512;
constexpr int64_t kDepth = 2048;

struct Blocks {
  float a[kRows * kDepth];
  float b[kDepth * kColumns];
  float c[kRows * kColumns];
};

// to [rows, columns] = the block of from [.., stride] that starts at `from`.
template <typename T>
void widen_block(float* to, const T* from, int64_t stride, int64_t rows, int64_t columns) {
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    float* to_row = to + row * columns;
    const T* from_row = from + row * stride;
#pragma GCC ivdep
    for (int64_t i = 0; i < columns; ++i) {
      to_row[i] = widen(from_row[i]);
    }
  }
}

// c and bias start at the block's first column.
template <typename Out, typename T>
void store_block(Out* c, int64_t stride, const float* sums, int64_t rows, int64_t columns, bool accumulate,
                 const T* bias) {
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    Out* c_row = c + row * stride;
    const float* sums_row = sums + row * columns;
#pragma GCC ivdep
    for (int64_t i = 0; i < columns; ++i) {
      float sum = sums_row[i];
      sum += bias != nullptr ? widen(bias[i]) : 0.0f;
      sum += accumulate ? widen(c_row[i]) : 0.0f;
      c_row[i] = narrow<Out>(sum);
    }
  }
}

// The calling thread's own.
Blocks& thread_blocks() {
  thread_local const std::unique_ptr<Blocks> blocks = std::make_unique_for_overwrite<Blocks>();
  return *blocks;
}

}  // namespace

template <typename Out, typename T>
void half_matmul(Out* c, const T* a, bool transpose_a, const T* b, bool transpose_b, int64_t m, int64_t n, int64_t k,
                 bool accumulate, const T* bias) {
  Blocks& blocks = thread_blocks();
  for (int64_t n0 = 0; n0 < n; n0 += kColumns) {
    const int64_t columns = std::min(kColumns, n - n0);
    for (int64_t m0 = 0; m0 < m; m0 += kRows) {
      const int64_t rows = std::min(kRows, m - m0);
      for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
        const int64_t depth = std::min(kDepth, k - k0);
        if (transpose_a) {
          widen_block(blocks.a, a + k0 * m + m0, m, depth, rows);
        } else {
          widen_block(blocks.a, a + m0 * k + k0, k, rows, depth);
        }
        const bool has_b = m0 > 0 && k <= kDepth;  // from the rows before
        if (!has_b && transpose_b) {
          widen_block(blocks.b, b + n0 * k + k0, k, columns, depth);
        } else if (!has_b) {
          widen_block(blocks.b, b + k0 * n + n0, n, depth, columns);
        }
        sgemm(transpose_a, transpose_b, rows, columns, depth, blocks.a, blocks.b, k0 > 0, blocks.c);
      }
      store_block(c + m0 * n + n0, n, blocks.c, rows, columns, accumulate, bias == nullptr ? nullptr : bias + n0);
    }
  }
}

#define INSTANTIATE(Out, T) \
  template void half_matmul(Out*, const T*, bool, const T*, bool, int64_t, int64_t, int64_t, bool, const T*)
INSTANTIATE(BFloat16, BFloat16);
INSTANTIATE(float, BFloat16);
INSTANTIATE(Float16, Float16);
INSTANTIATE(float, Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
