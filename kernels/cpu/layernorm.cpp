#include "kernels/cpu/layernorm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/loops.h"

namespace ashlar::kernels::cpu {
namespace {

// dgamma and dbeta: one thread owns a block of columns and walks all rows, so the order of the sum is fixed. Rows are
// summed in blocks first: 64 + R/64 additions in a row round less than R of them.
template <typename T>
void backward_parameters(Compute<T>* dgamma, Compute<T>* dbeta, const T* dy, const T* x, const Compute<T>* mean,
                         const Compute<T>* rstd, int64_t rows, int64_t columns) {
  using S = Compute<T>;
  constexpr int64_t kColumns = 128;
  constexpr int64_t kRows = 64;
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t begin = 0; begin < columns; begin += kColumns) {
    const int64_t width = std::min(kColumns, columns - begin);
    S gamma_total[kColumns] = {};
    S beta_total[kColumns] = {};
    for (int64_t row_begin = 0; row_begin < rows; row_begin += kRows) {
      S gamma_sum[kColumns] = {};
      S beta_sum[kColumns] = {};
      for (int64_t row = row_begin; row < std::min(rows, row_begin + kRows); ++row) {
        const T* dy_row = dy + row * columns + begin;
        const T* x_row = x + row * columns + begin;
        for (int64_t c = 0; c < width; ++c) {
          gamma_sum[c] += widen(dy_row[c]) * ((widen(x_row[c]) - mean[row]) * rstd[row]);
          beta_sum[c] += widen(dy_row[c]);
        }
      }
      for (int64_t c = 0; c < width; ++c) {
        gamma_total[c] += gamma_sum[c];
        beta_total[c] += beta_sum[c];
      }
    }
    std::copy(gamma_total, gamma_total + width, dgamma + begin);
    std::copy(beta_total, beta_total + width, dbeta + begin);
  }
}

}  // namespace

template <typename T>
void layernorm_forward(T* y, Compute<T>* mean, Compute<T>* rstd, const T* x, const T* gamma, const T* beta,
                       int64_t rows, int64_t columns, double epsilon) {
  using S = Compute<T>;
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    const T* x_row = x + row * columns;
    T* y_row = y + row * columns;
    const S m = sum_lanes<S>(columns, [=](int64_t c) { return widen(x_row[c]); }) / static_cast<S>(columns);
    // Two passes, as E[x^2] - E[x]^2 loses all digits when the mean is large.
    const S squares = sum_lanes<S>(columns, [=](int64_t c) { return (widen(x_row[c]) - m) * (widen(x_row[c]) - m); });
    const S s = S{1} / std::sqrt(squares / static_cast<S>(columns) + static_cast<S>(epsilon));
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      y_row[c] = narrow<T>((widen(x_row[c]) - m) * s * widen(gamma[c]) + widen(beta[c]));
    }
    mean[row] = m;
    rstd[row] = s;
  }
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - avg(g) - n avg(g n)), averages over the row.
template <typename T>
void layernorm_backward(T* dx, Compute<T>* dgamma, Compute<T>* dbeta, const T* dy, const T* dresidual, const T* x,
                        const T* gamma, const Compute<T>* mean, const Compute<T>* rstd, int64_t rows, int64_t columns) {
  using S = Compute<T>;
  backward_parameters(dgamma, dbeta, dy, x, mean, rstd, rows, columns);
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    const T* dy_row = dy + row * columns;
    const T* x_row = x + row * columns;
    T* dx_row = dx + row * columns;
    const S m = mean[row];
    const S s = rstd[row];
    const auto g = [=](int64_t c) { return widen(dy_row[c]) * widen(gamma[c]); };
    const S g_average = sum_lanes<S>(columns, g) / static_cast<S>(columns);
    const S gn_average =
        sum_lanes<S>(columns, [=](int64_t c) { return g(c) * ((widen(x_row[c]) - m) * s); }) / static_cast<S>(columns);
    if (dresidual == nullptr) {
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) {
        dx_row[c] = narrow<T>(s * (g(c) - g_average - (widen(x_row[c]) - m) * s * gn_average));
      }
    } else {
      const T* residual_row = dresidual + row * columns;
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) {
        dx_row[c] = narrow<T>(widen(residual_row[c]) + s * (g(c) - g_average - (widen(x_row[c]) - m) * s * gn_average));
      }
    }
  }
}

#define INSTANTIATE(T)                                                                                          \
  template void layernorm_forward(T*, Compute<T>*, Compute<T>*, const T*, const T*, const T*, int64_t, int64_t, \
                                  double);                                                                      \
  template void layernorm_backward(T*, Compute<T>*, Compute<T>*, const T*, const T*, const T*, const T*,        \
                                   const Compute<T>*, const Compute<T>*, int64_t, int64_t)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
