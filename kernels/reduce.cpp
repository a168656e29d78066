#include "kernels/reduce.h"

#include "kernels/checks.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cuda/reduce.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {

void sum_of_squares(TensorView blocks, ConstTensorView x, Stream& stream) {
  constexpr std::string_view kOp = "sum_of_squares";
  const int64_t n = x.num_elements();
  check_view(kOp, "x", x, x.dtype, n);
  check_view(kOp, "blocks", blocks, DType::kF64, (n + kNormBlock - 1) / kNormBlock);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::sum_of_squares(blocks.as<double>(), x.data, gradient_element_of(kOp, x.dtype), n, gpu->handle());
  }
  with_gradient_type(x.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp,
           [blocks_data = blocks.as<double>(), x_data = x.as<T>(), n] { cpu::sum_of_squares(blocks_data, x_data, n); });
  });
}

void sum_in_order(TensorView total, ConstTensorView x, Stream& stream) {
  constexpr std::string_view kOp = "sum_in_order";
  const int64_t n = x.num_elements();
  check_view(kOp, "x", x, x.dtype, n);
  check_view(kOp, "total", total, DType::kF64, 1);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return x.dtype == DType::kF64 ? cuda::sum_in_order(total.as<double>(), x.as<double>(), n, gpu->handle())
                                  : cuda::sum_in_order(total.as<double>(), x.as<float>(), n, gpu->handle());
  }
  with_stat_type(x.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp,
           [total_data = total.as<double>(), x_data = x.as<T>(), n] { cpu::sum_in_order(total_data, x_data, n); });
  });
}

}  // namespace ashlar::kernels
