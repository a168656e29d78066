#include "kernels/cuda/activation.h"

#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

// Calls function(F{}) with the functions of an activation. On the host.
template <typename Function>
void with_activation(Activation activation, Function function) {
  if (activation == Activation::kGeluTanh) {
    function(GeluTanh{});
  } else {
    function(GeluErf{});
  }
}

template <typename Function, typename T>
__global__ void __launch_bounds__(kFlatThreads) activation_forward_kernel(T* y, const T* x, int64_t n, bool wide) {
  constexpr int kPack = kPackOf<T>;
  const int64_t i = flat_index<kPack>();
  auto p = load_pack<kPack>(x + i, n - i, wide);
#pragma unroll
  for (float& v : p.v) {
    v = Function::value(v);
  }
  store_pack(y + i, p, n - i, wide);
}

template <typename Function, typename T>
__global__ void __launch_bounds__(kFlatThreads)
    activation_backward_kernel(T* dx, const T* dy, const T* x, int64_t n, bool wide) {
  constexpr int kPack = kPackOf<T>;
  const int64_t i = flat_index<kPack>();
  const auto slopes_at = load_pack<kPack>(x + i, n - i, wide);
  auto p = load_pack<kPack>(dy + i, n - i, wide);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    p.v[k] *= Function::slope(slopes_at.v[k]);
  }
  store_pack(dx + i, p, n - i, wide);
}

// A block covers 8 rows of 32 packs.
constexpr int kRowsPerBlock = 8;
template <typename T>
__global__ void __launch_bounds__(32 * kRowsPerBlock)
    add_bias_residual_kernel(T* out, const T* a, const T* b, const T* bias, int64_t rows, int64_t columns, bool wide) {
  constexpr int kPack = kPackOf<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.y;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * kPack;
  const int64_t left = columns - column;
  if (row >= rows || left <= 0) {
    return;
  }
  const int64_t at = row * columns + column;
  auto p = load_pack<kPack>(a + at, left, wide);
  const auto q = load_pack<kPack>(b + at, left, wide);
  const auto r = bias == nullptr ? Pack<kPack>{} : load_pack<kPack>(bias + column, left, wide);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    p.v[k] = p.v[k] + q.v[k] + r.v[k];
  }
  store_pack(out + at, p, left, wide);
}

}  // namespace

void activation_forward(Element element, void* y, const void* x, int64_t n, Activation activation,
                        StreamHandle stream) {
  if (n == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = kPackOf<T>;
    with_activation(activation, [&](auto function) {
      LAUNCH((activation_forward_kernel<decltype(function), T>), flat_grid<kPack>(n), dim3(kFlatThreads), 0, stream, y,
             x, n, can_be_wide<T, kPack>({y, x}));
    });
  });
}

void activation_backward(Element element, void* dx, const void* dy, const void* x, int64_t n, Activation activation,
                         StreamHandle stream) {
  if (n == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = kPackOf<T>;
    with_activation(activation, [&](auto function) {
      LAUNCH((activation_backward_kernel<decltype(function), T>), flat_grid<kPack>(n), dim3(kFlatThreads), 0, stream,
             dx, dy, x, n, can_be_wide<T, kPack>({dx, dy, x}));
    });
  });
}

void add_bias_residual(Element element, void* out, const void* a, const void* b, const void* bias, int64_t rows,
                       int64_t columns, StreamHandle stream) {
  if (rows * columns == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = kPackOf<T>;
    const dim3 grid(static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock),
                    static_cast<unsigned>((columns + 32 * kPack - 1) / (32 * kPack)));
    LAUNCH(add_bias_residual_kernel<T>, grid, dim3(32, kRowsPerBlock), 0, stream, out, a, b, bias, rows, columns,
           can_be_wide<T, kPack>({out, a, b, bias}, columns));
  });
}

}  // namespace ashlar::kernels::cuda
