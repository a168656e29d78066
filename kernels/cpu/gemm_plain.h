// A cache-blocked matrix product in plain C++, over float and double: fp64 everywhere, fp32 where oneDNN is absent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/tile.h"

namespace ashlar::kernels::cpu {

// c [m,n] = or += op(a) op(b), all row-major; a is stored [k,m] when transpose_a, b is stored [n,k] when transpose_b.
// b is packed by blocks of 256 x 64, so that each is transposed once and stays in the second-level cache for all rows
// of a. Threads own columns of c: the sums do not depend on how many there are.
template <typename T>
void gemm_plain(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const T* a, const T* b,
                bool accumulate, T* c) {
  constexpr int kRows = 64;
  constexpr int kColumns = 64;
  constexpr int kDepth = 256;
  const int64_t a_row = transpose_a ? 1 : k;
  const int64_t a_col = transpose_a ? m : 1;
#pragma omp parallel for schedule(static)
  for (int64_t n0 = 0; n0 < n; n0 += kColumns) {
    alignas(kBlockAlignment) T b_block[kDepth * kColumns];
    alignas(kBlockAlignment) T c_block[kRows * kColumns];
    const int columns = static_cast<int>(std::min<int64_t>(kColumns, n - n0));
    const int padded = padded_columns<T>(columns);
    for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
      const int depth = static_cast<int>(std::min<int64_t>(kDepth, k - k0));
      for (int kk = 0; kk < depth; ++kk) {
        for (int nn = 0; nn < padded; ++nn) {
          const int64_t row = k0 + kk;
          const int64_t column = n0 + nn;
          b_block[kk * kColumns + nn] = nn < columns ? (transpose_b ? b[column * k + row] : b[row * n + column]) : T(0);
        }
      }
      for (int64_t m0 = 0; m0 < m; m0 += kRows) {
        const int rows = static_cast<int>(std::min<int64_t>(kRows, m - m0));
        block_product(c_block, kColumns, rows, padded, a + m0 * a_row + k0 * a_col, a_row, a_col, b_block, kColumns,
                      depth, false);
        const bool add = accumulate || k0 > 0;
        for (int mm = 0; mm < rows; ++mm) {
          T* c_row = c + (m0 + mm) * n + n0;
          for (int nn = 0; nn < columns; ++nn) {
            c_row[nn] = c_block[mm * kColumns + nn] + (add ? c_row[nn] : T(0));
          }
        }
      }
    }
  }
}

}  // namespace ashlar::kernels::cpu
