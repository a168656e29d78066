// From a checked call to the device of its stream: launch() for the CPU, gpu_of() (gpu_stream.h) for a GPU.
#pragma once

#include <string_view>

#include "kernels/gpu_stream.h"
#include "runtime/base/error.h"
#include "runtime/device/cpu/cpu_device.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. Runs `cpu`, a trivially copyable function object without arguments, on the CPU stream; `op` is a
// literal, under which observers of the device see it.
template <typename CpuTask>
void launch(Stream& stream, std::string_view op, CpuTask cpu) {
  cpu_stream(stream).enqueue(cpu, op);
}

// Calls function(T{}) with the C++ type that kernels compute in: fp32, bf16, fp16, or fp64 for finite differences.
template <typename Function>
void with_compute_type(DType dtype, std::string_view op, Function function) {
  switch (dtype) {
    case DType::kF32:
      return function(float{});
    case DType::kBF16:
      return function(BFloat16{});
    case DType::kF16:
      return function(Float16{});
    case DType::kF64:
      return function(double{});
    default:
      DCHECK(false, "{} computes in fp32, bf16, fp16 or fp64, not in {}", op, dtype_name(dtype));
  }
}

// The same for what is never rounded to 16 bits: fp32, or fp64.
template <typename Function>
void with_stat_type(DType dtype, std::string_view op, Function function) {
  DCHECK(dtype == DType::kF32 || dtype == DType::kF64, "{} takes fp32 or fp64, not {}", op, dtype_name(dtype));
  if (dtype == DType::kF32) {
    function(float{});
  } else {
    function(double{});
  }
}

// The same for gradients of parameters, which may also be kept and summed over ranks in bf16.
template <typename Function>
void with_gradient_type(DType dtype, std::string_view op, Function function) {
  if (dtype == DType::kBF16) {
    function(BFloat16{});
  } else {
    with_stat_type(dtype, op, function);
  }
}

}  // namespace ashlar::kernels
