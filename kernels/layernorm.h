// Layer normalisation over the last dim (Ba et al., arXiv:1607.06450, section 3).
#pragma once

#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// mean, rstd, dgamma and dbeta are fp32 (fp64 where x is); everything else has the dtype of x.

// Stream-ordered. y [R,C] = (x - mean) * rstd * gamma + beta; mean [R] and rstd [R] = 1/sqrt(var + eps) are kept for
// backward.
void layernorm_forward(TensorView y, TensorView mean, TensorView rstd, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView beta, double epsilon, Stream& stream);

// Stream-ordered. sum [R,C] = a [R,C] + b [R,C] + bias [C] (when it has data), and the norm of `sum` as stored:
// add_bias_residual and layernorm_forward in one, with their bits. sum may be a or b.
void residual_layernorm_forward(TensorView y, TensorView sum, TensorView mean, TensorView rstd, ConstTensorView a,
                                ConstTensorView b, ConstTensorView bias, ConstTensorView gamma, ConstTensorView beta,
                                double epsilon, Stream& stream);

// Stream-ordered. dx [R,C] = dresidual [R,C] (when given) + the gradient through the norm; dx may be dresidual itself.
// dgamma [C] and dbeta [C] are overwritten with this call's sums over rows (fixed order).
void layernorm_backward(TensorView dx, TensorView dgamma, TensorView dbeta, ConstTensorView dy,
                        ConstTensorView dresidual, ConstTensorView x, ConstTensorView gamma, ConstTensorView mean,
                        ConstTensorView rstd, Stream& stream);

}  // namespace ashlar::kernels
