#include "kernels/dropout.h"

#include "kernels/checks.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cuda/dropout.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {
namespace {

void run(std::string_view op, TensorView out, ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
         const Dropout& dropout, const SampleRows& place, Stream& stream) {
  DCHECK(place.length > 0 && place.first >= 0, "{}: rows from {} on of samples of {}", op, place.first, place.length);
  DCHECK(dropout.probability > 0 && dropout.probability < 1, "{} takes a probability in (0, 1), got {}", op,
         dropout.probability);
  const int64_t columns = x.shape[-1], rows = x.num_elements() / columns;
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
                                 dropout, place, gpu->handle());
  }
  with_compute_type(x.dtype, op, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, op,
           [out_data = out.as<T>(), x_data = x.as<T>(), bias_data = bias.data == nullptr ? nullptr : bias.as<T>(),
            residual_data = residual.data == nullptr ? nullptr : residual.as<T>(), rows, columns, dropout, place] {
             cpu::dropout_forward(out_data, x_data, bias_data, residual_data, rows, columns, dropout, place);
           });
  });
}

}  // namespace

void dropout_forward(TensorView out, ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
                     const Dropout& dropout, const SampleRows& place, Stream& stream) {
  run("dropout_forward", out, x, bias, residual, dropout, place, stream);
}

void dropout_backward(TensorView dx, ConstTensorView dy, const Dropout& dropout, const SampleRows& place,
                      Stream& stream) {
  run("dropout_backward", dx, dy, {}, {}, dropout, place, stream);
}

}  // namespace ashlar::kernels
