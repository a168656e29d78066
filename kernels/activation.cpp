#include "kernels/activation.h"

#include "kernels/checks.h"
#include "kernels/cpu/activation.h"
#include "kernels/cuda/activation.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {

void activation_forward(TensorView y, ConstTensorView x, Activation activation, Stream& stream) {
  constexpr std::string_view kOp = "activation_forward";
  const int64_t n = x.num_elements();
  check_view(kOp, "x", x, x.dtype, n);
  check_view(kOp, "y", y, x.dtype, n);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::activation_forward(element_of(kOp, x.dtype), y.data, x.data, n, activation, gpu->handle());
  }
  with_compute_type(x.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp, [y_data = y.as<T>(), x_data = x.as<T>(), n, activation] {
      cpu::activation_forward(y_data, x_data, n, activation);
    });
  });
}

void activation_backward(TensorView dx, ConstTensorView dy, ConstTensorView x, Activation activation, Stream& stream) {
  constexpr std::string_view kOp = "activation_backward";
  const int64_t n = x.num_elements();
  check_view(kOp, "x", x, x.dtype, n);
  check_view(kOp, "dy", dy, x.dtype, n);
  check_view(kOp, "dx", dx, x.dtype, n);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::activation_backward(element_of(kOp, x.dtype), dx.data, dy.data, x.data, n, activation, gpu->handle());
  }
  with_compute_type(x.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp, [dx_data = dx.as<T>(), dy_data = dy.as<T>(), x_data = x.as<T>(), n, activation] {
      cpu::activation_backward(dx_data, dy_data, x_data, n, activation);
    });
  });
}

void add_bias_residual(TensorView out, ConstTensorView a, ConstTensorView b, ConstTensorView bias, Stream& stream) {
  constexpr std::string_view kOp = "add_bias_residual";
  const int64_t columns = a.shape[-1];
  const int64_t rows = columns == 0 ? 0 : a.num_elements() / columns;
  check_view(kOp, "a", a, a.dtype, rows * columns);
  check_view(kOp, "b", b, a.dtype, rows * columns);
  check_view(kOp, "out", out, a.dtype, rows * columns);
  if (bias.data != nullptr) {
    check_view(kOp, "bias", bias, a.dtype, columns);
  }
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::add_bias_residual(element_of(kOp, a.dtype), out.data, a.data, b.data, bias.data, rows, columns,
                                   gpu->handle());
  }
  with_compute_type(a.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp,
           [out_data = out.as<T>(), a_data = a.as<T>(), b_data = b.as<T>(),
            bias_data = bias.data == nullptr ? nullptr : bias.as<T>(), rows,
            columns] { cpu::add_bias_residual(out_data, a_data, b_data, bias_data, rows, columns); });
  });
}

}  // namespace ashlar::kernels
