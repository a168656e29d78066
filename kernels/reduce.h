// Sums that must not depend on who computes them.
#pragma once

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. blocks [ceil(n / kNormBlock)] fp64 = sum of squares of each block of x [n] (fp32, fp64 or bf16), each
// summed in fp64 in one fixed order; infinity and NaN pass through.
void sum_of_squares(TensorView blocks, ConstTensorView x, Stream& stream);

// Stream-ordered. total [1] fp64 = sum of x [n] (fp32) in ascending order in fp64.
void sum_in_order(TensorView total, ConstTensorView x, Stream& stream);

}  // namespace ashlar::kernels
