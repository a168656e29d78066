#include "kernels/accumulate.h"

#include "kernels/cast.h"
#include "kernels/checks.h"
#include "kernels/cpu/accumulate.h"
#include "kernels/cuda/accumulate.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {

void accumulate(TensorView acc, ConstTensorView x, Write write, Stream& stream) {
  constexpr std::string_view kOp = "accumulate";
  const int64_t n = acc.num_elements();
  check_view(kOp, "acc", acc, acc.dtype, n);
  check_view(kOp, "x", x, x.dtype, n);
  DCHECK((acc.dtype == DType::kF64) == (x.dtype == DType::kF64), "{} of {} to {}: fp64 goes with fp64 alone", kOp,
         dtype_name(x.dtype), dtype_name(acc.dtype));
  if (write == Write::kOverwrite) {
    return acc.dtype == x.dtype ? stream.copy(acc.data, x.data, acc.bytes()) : cast(acc, x, stream);
  }
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::accumulate(acc.data, gradient_element_of(kOp, acc.dtype), x.data, gradient_element_of(kOp, x.dtype), n,
                            gpu->handle());
  }
  with_gradient_type(acc.dtype, kOp, [&]<typename Acc>(Acc) {
    with_gradient_type(x.dtype, kOp, [&]<typename X>(X) {
      if constexpr (std::is_same_v<Acc, double> == std::is_same_v<X, double>) {
        launch(stream, kOp, [acc = acc.as<Acc>(), x = x.as<X>(), n] { cpu::accumulate(acc, x, n); });
      }
    });
  });
}

}  // namespace ashlar::kernels
