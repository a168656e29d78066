#include "kernels/dropout.h"

#include "kernels/checks.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cuda/dropout.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {
namespace {

void run(std::string_view op, TensorView out, ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
         const Dropout& dropout, int64_t first_position, Stream& stream) {
  DCHECK(x.shape.num_dims() == 3, "{} takes [B,T,C], got {} dims", op, x.shape.num_dims());
  DCHECK(dropout.probability > 0 && dropout.probability < 1, "{} takes a probability in (0, 1), got {}", op,
         dropout.probability);
  const int64_t length = x.shape[1], columns = x.shape[2], rows = x.shape[0] * length;
  check_view(op, "x", x, x.dtype, rows * columns);
  check_view(op, "out", out, x.dtype, rows * columns);
  if (bias.data != nullptr) {
    check_view(op, "bias", bias, x.dtype, columns);
  }
  if (residual.data != nullptr) {
    check_view(op, "residual", residual, x.dtype, rows * columns);
  }
  if (const GpuStream* gpu = gpu_of(stream, op)) {
    return cuda::dropout_forward(element_of(op, x.dtype), out.data, x.data, bias.data, residual.data, rows, columns,
                                 length, dropout, first_position, gpu->handle());
  }
  with_compute_type(x.dtype, op, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, op,
           [out_data = out.as<T>(), x_data = x.as<T>(), bias_data = bias.data == nullptr ? nullptr : bias.as<T>(),
            residual_data = residual.data == nullptr ? nullptr : residual.as<T>(), rows, columns, length, dropout,
            first_position] {
             cpu::dropout_forward(out_data, x_data, bias_data, residual_data, rows, columns, length, dropout,
                                  first_position);
           });
  });
}

}  // namespace

void dropout_forward(TensorView out, ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
                     const Dropout& dropout, int64_t first_position, Stream& stream) {
  run("dropout_forward", out, x, bias, residual, dropout, first_position, stream);
}

void dropout_backward(TensorView dx, ConstTensorView dy, const Dropout& dropout, int64_t first_position,
                      Stream& stream) {
  run("dropout_backward", dx, dy, {}, {}, dropout, first_position, stream);
}

}  // namespace ashlar::kernels
