// Layer normalisation over the last dim (Ba et al., arXiv:1607.06450, section 3).
#pragma once

#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. y [R,C] = (x - mean) * rstd * gamma + beta; mean [R] and rstd [R] = 1/sqrt(var + eps) are kept for
// backward (always in the dtype of x, fp32 or fp64).
void layernorm_forward(TensorView y, TensorView mean, TensorView rstd, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView beta, double epsilon, Stream& stream);

// Stream-ordered. dx [R,C] = dresidual [R,C] (when given) + the gradient through the norm; dx may be dresidual itself.
// dgamma [C] and dbeta [C] are overwritten with this call's sums over rows (fixed order).
void layernorm_backward(TensorView dx, TensorView dgamma, TensorView dbeta, ConstTensorView dy,
                        ConstTensorView dresidual, ConstTensorView x, ConstTensorView gamma, ConstTensorView mean,
                        ConstTensorView rstd, Stream& stream);

}  // namespace ashlar::kernels
