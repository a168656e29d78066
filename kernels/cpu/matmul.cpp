#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/gemm_plain.h"
#include "kernels/cpu/half_matmul.h"
#include "kernels/cpu/sgemm.h"

namespace ashlar::kernels::cpu {

template <typename Out, typename T>
void matmul(Out* c, const T* a, bool transpose_a, const T* b, bool transpose_b, int64_t m, int64_t n, int64_t k,
            bool accumulate) {
  if constexpr (std::is_same_v<T, float>) {
    sgemm(transpose_a, transpose_b, m, n, k, a, b, accumulate, c);
  } else if constexpr (sizeof(T) == 2) {
    half_matmul(c, a, transpose_a, b, transpose_b, m, n, k, accumulate, static_cast<const T*>(nullptr));
  } else {
    gemm_plain(transpose_a, transpose_b, m, n, k, a, b, accumulate, c);
  }
}

// In fp32 the bias goes in first and the product is added to it: one pass over y that the product would make anyway.
template <typename T>
void linear_forward(T* y, const T* x, const T* w, const T* bias, int64_t r, int64_t n, int64_t k) {
  if constexpr (sizeof(T) == 2) {
    half_matmul(y, x, false, w, true, r, n, k, false, bias);
  } else {
    if (bias != nullptr) {
#pragma omp parallel for schedule(static)
      for (int64_t row = 0; row < r; ++row) {
        std::copy(bias, bias + n, y + row * n);
      }
    }
    matmul(y, x, false, w, true, r, n, k, bias != nullptr);
  }
}

// Each thread owns strips of columns. Sums run in blocks of rows, so that rounding errors grow with the number of
// blocks instead of the number of rows.
template <typename T>
void bias_backward(Compute<T>* db, const T* dy, int64_t r, int64_t n, bool accumulate) {
  constexpr int64_t kColumns = 256;
  constexpr int64_t kRows = 64;
#pragma omp parallel for schedule(static)
  for (int64_t n0 = 0; n0 < n; n0 += kColumns) {
    Compute<T> total[kColumns] = {};
    const int64_t columns = std::min(kColumns, n - n0);
    for (int64_t r0 = 0; r0 < r; r0 += kRows) {
      Compute<T> sum[kColumns] = {};
      const int64_t end = std::min(r0 + kRows, r);
      for (int64_t row = r0; row < end; ++row) {
        for (int64_t i = 0; i < columns; ++i) {
          sum[i] += widen(dy[row * n + n0 + i]);
        }
      }
      for (int64_t i = 0; i < columns; ++i) {
        total[i] += sum[i];
      }
    }
    for (int64_t i = 0; i < columns; ++i) {
      db[n0 + i] = total[i] + (accumulate ? db[n0 + i] : Compute<T>(0));
    }
  }
}

template void matmul(float*, const BFloat16*, bool, const BFloat16*, bool, int64_t, int64_t, int64_t, bool);
template void matmul(float*, const Float16*, bool, const Float16*, bool, int64_t, int64_t, int64_t, bool);

#define INSTANTIATE(T)                                                                       \
  template void matmul(T*, const T*, bool, const T*, bool, int64_t, int64_t, int64_t, bool); \
  template void linear_forward(T*, const T*, const T*, const T*, int64_t, int64_t, int64_t); \
  template void bias_backward(Compute<T>*, const T*, int64_t, int64_t, bool)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
