#include "kernels/cpu/layernorm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/loops.h"

namespace ashlar::kernels::cpu {
namespace {

// dgamma and dbeta: one thread owns a block of columns and walks all rows, so the order of the sum is fixed. Rows are
// summed in blocks first: 64 + R/64 additions in a row round less than R of them.
template <typename T>
void backward_parameters(T* dgamma, T* dbeta, const T* dy, const T* x, const T* mean, const T* rstd, int64_t rows,
                         int64_t columns) {
  constexpr int64_t kColumns = 128;
  constexpr int64_t kRows = 64;
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t begin = 0; begin < columns; begin += kColumns) {
    const int64_t width = std::min(kColumns, columns - begin);
    T gamma_total[kColumns] = {};
    T beta_total[kColumns] = {};
    for (int64_t row_begin = 0; row_begin < rows; row_begin += kRows) {
      T gamma_sum[kColumns] = {};
      T beta_sum[kColumns] = {};
      for (int64_t row = row_begin; row < std::min(rows, row_begin + kRows); ++row) {
        const T* dy_row = dy + row * columns + begin;
        const T* x_row = x + row * columns + begin;
        for (int64_t c = 0; c < width; ++c) {
          gamma_sum[c] += dy_row[c] * ((x_row[c] - mean[row]) * rstd[row]);
          beta_sum[c] += dy_row[c];
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
void layernorm_forward(T* y, T* mean, T* rstd, const T* x, const T* gamma, const T* beta, int64_t rows, int64_t columns,
                       double epsilon) {
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    const T* x_row = x + row * columns;
    T* y_row = y + row * columns;
    const T m = sum_lanes<T>(columns, [=](int64_t c) { return x_row[c]; }) / static_cast<T>(columns);
    // Two passes, as E[x^2] - E[x]^2 loses all digits when the mean is large.
    const T squares = sum_lanes<T>(columns, [=](int64_t c) { return (x_row[c] - m) * (x_row[c] - m); });
    const T s = T{1} / std::sqrt(squares / static_cast<T>(columns) + static_cast<T>(epsilon));
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      y_row[c] = (x_row[c] - m) * s * gamma[c] + beta[c];
    }
    mean[row] = m;
    rstd[row] = s;
  }
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - avg(g) - n avg(g n)), averages over the row.
template <typename T>
void layernorm_backward(T* dx, T* dgamma, T* dbeta, const T* dy, const T* dresidual, const T* x, const T* gamma,
                        const T* mean, const T* rstd, int64_t rows, int64_t columns) {
  backward_parameters(dgamma, dbeta, dy, x, mean, rstd, rows, columns);
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    const T* dy_row = dy + row * columns;
    const T* x_row = x + row * columns;
    T* dx_row = dx + row * columns;
    const T m = mean[row];
    const T s = rstd[row];
    const T g_average =
        sum_lanes<T>(columns, [=](int64_t c) { return dy_row[c] * gamma[c]; }) / static_cast<T>(columns);
    const T gn_average = sum_lanes<T>(columns, [=](int64_t c) { return dy_row[c] * gamma[c] * ((x_row[c] - m) * s); }) /
                         static_cast<T>(columns);
    if (dresidual == nullptr) {
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) {
        dx_row[c] = s * (dy_row[c] * gamma[c] - g_average - (x_row[c] - m) * s * gn_average);
      }
    } else {
      const T* residual_row = dresidual + row * columns;
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) {
        dx_row[c] = residual_row[c] + s * (dy_row[c] * gamma[c] - g_average - (x_row[c] - m) * s * gn_average);
      }
    }
  }
}

template void layernorm_forward(float*, float*, float*, const float*, const float*, const float*, int64_t, int64_t,
                                double);
template void layernorm_forward(double*, double*, double*, const double*, const double*, const double*, int64_t,
                                int64_t, double);
template void layernorm_backward(float*, float*, float*, const float*, const float*, const float*, const float*,
                                 const float*, const float*, int64_t, int64_t);
template void layernorm_backward(double*, double*, double*, const double*, const double*, const double*, const double*,
                                 const double*, const double*, int64_t, int64_t);

}  // namespace ashlar::kernels::cpu
