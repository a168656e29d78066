// Between element types.
#pragma once

#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. out = in, elementwise, rounded to nearest even; fp32, bf16 and fp16 in any combination. NaN stays
// NaN.
void cast(TensorView out, ConstTensorView in, Stream& stream);

}  // namespace ashlar::kernels
