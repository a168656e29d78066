#include "kernels/cast.h"

#include "kernels/checks.h"
#include "kernels/cpu/cast.h"
#include "kernels/cuda/cast.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {
namespace {

// Calls function(T{}) with the C++ type of an element that is fp32, bf16 or fp16.
template <typename Function>
void with_element_type(DType dtype, std::string_view op, Function function) {
  DCHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
         "{} goes between fp32, bf16 and fp16, got {}", op, dtype_name(dtype));
  if (dtype == DType::kF32) {
    function(float{});
  } else if (dtype == DType::kBF16) {
    function(BFloat16{});
  } else {
    function(Float16{});
  }
}

}  // namespace

void cast(TensorView out, ConstTensorView in, Stream& stream) {
  constexpr std::string_view kOp = "cast";
  const int64_t n = in.num_elements();
  check_view(kOp, "in", in, in.dtype, n);
  check_view(kOp, "out", out, out.dtype, n);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::cast(out.data, element_of(kOp, out.dtype), in.data, element_of(kOp, in.dtype), n, gpu->handle());
  }
  with_element_type(out.dtype, kOp, [&]<typename Out>(Out) {
    with_element_type(in.dtype, kOp, [&]<typename In>(In) {
      launch(stream, kOp, [out = out.as<Out>(), in = in.as<In>(), n] { cpu::cast(out, in, n); });
    });
  });
}

}  // namespace ashlar::kernels
