// Sums of gradients over micro-batches, as they arrive from the other ranks.
#pragma once

#include "kernels/matmul.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. acc [n] = x [n] (kOverwrite) or acc += x (kAdd), elementwise; acc and x are fp32 or bf16 in any
// combination, or both fp64. A sum is formed in fp32 (fp64) and rounded to acc once.
void accumulate(TensorView acc, ConstTensorView x, Write write, Stream& stream);

}  // namespace ashlar::kernels
