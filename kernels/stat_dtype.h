// The type of what must not be rounded to 16 bits: gradients of parameters, norm statistics, log-sum-exp, losses.
#pragma once

#include "runtime/base/dtype.h"

namespace ashlar::kernels {

// Pure. S of a compute type T: fp64 for fp64, else fp32.
constexpr DType stat_dtype(DType compute) {
  return compute == DType::kF64 ? DType::kF64 : DType::kF32;
}

}  // namespace ashlar::kernels
