#include "kernels/cuda/activation.h"

#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

template <typename Function>
__global__ void __launch_bounds__(kFlatThreads) forward_kernel(float* y, const float* x, int64_t n, bool wide) {
  const int64_t i = flat_index();
  Pack p = load_pack(x + i, n - i, wide);
#pragma unroll
  for (float& v : p.v) {
    v = Function::value(v);
  }
  store_pack(y + i, p, n - i, wide);
}

template <typename Function>
__global__ void __launch_bounds__(kFlatThreads)
    backward_kernel(float* dx, const float* dy, const float* x, int64_t n, bool wide) {
  const int64_t i = flat_index();
  const Pack slopes_at = load_pack(x + i, n - i, wide);
  Pack p = load_pack(dy + i, n - i, wide);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    p.v[k] *= Function::slope(slopes_at.v[k]);
  }
  store_pack(dx + i, p, n - i, wide);
}

__global__ void __launch_bounds__(kFlatThreads) add_kernel(float* y, const float* x, int64_t n, bool wide) {
  const int64_t i = flat_index();
  const Pack a = load_pack(x + i, n - i, wide);
  Pack p = load_pack(y + i, n - i, wide);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    p.v[k] += a.v[k];
  }
  store_pack(y + i, p, n - i, wide);
}

// A block covers 8 rows of 128 columns.
constexpr int kRowsPerBlock = 8;
__global__ void __launch_bounds__(32 * kRowsPerBlock)
    add_bias_residual_kernel(float* out, const float* a, const float* b, const float* bias, int64_t rows,
                             int64_t columns, bool wide) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.y;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * kPack;
  const int64_t left = columns - column;
  if (row >= rows || left <= 0) {
    return;
  }
  const int64_t at = row * columns + column;
  Pack p = load_pack(a + at, left, wide);
  const Pack q = load_pack(b + at, left, wide);
  const Pack r = bias == nullptr ? Pack{} : load_pack(bias + column, left, wide);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    p.v[k] = p.v[k] + q.v[k] + r.v[k];
  }
  store_pack(out + at, p, left, wide);
}

}  // namespace

void activation_forward(float* y, const float* x, int64_t n, Activation activation, StreamHandle stream) {
  if (n == 0) {
    return;
  }
  const bool wide = can_be_wide({y, x});
  if (activation == Activation::kGeluTanh) {
    LAUNCH(forward_kernel<GeluTanh>, flat_grid(n), dim3(kFlatThreads), 0, stream, y, x, n, wide);
  } else {
    LAUNCH(forward_kernel<GeluErf>, flat_grid(n), dim3(kFlatThreads), 0, stream, y, x, n, wide);
  }
}

void activation_backward(float* dx, const float* dy, const float* x, int64_t n, Activation activation,
                         StreamHandle stream) {
  if (n == 0) {
    return;
  }
  const bool wide = can_be_wide({dx, dy, x});
  if (activation == Activation::kGeluTanh) {
    LAUNCH(backward_kernel<GeluTanh>, flat_grid(n), dim3(kFlatThreads), 0, stream, dx, dy, x, n, wide);
  } else {
    LAUNCH(backward_kernel<GeluErf>, flat_grid(n), dim3(kFlatThreads), 0, stream, dx, dy, x, n, wide);
  }
}

void add_bias_residual(float* out, const float* a, const float* b, const float* bias, int64_t rows, int64_t columns,
                       StreamHandle stream) {
  if (rows * columns == 0) {
    return;
  }
  const dim3 grid(static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock),
                  static_cast<unsigned>((columns + 32 * kPack - 1) / (32 * kPack)));
  LAUNCH(add_bias_residual_kernel, grid, dim3(32, kRowsPerBlock), 0, stream, out, a, b, bias, rows, columns,
         can_be_wide({out, a, b, bias}, columns));
}

void add(float* y, const float* x, int64_t n, StreamHandle stream) {
  if (n == 0) {
    return;
  }
  LAUNCH(add_kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, y, x, n, can_be_wide({y, x}));
}

}  // namespace ashlar::kernels::cuda
