// Activations and the small elementwise sums around them.
#pragma once

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. y = act(x), elementwise.
void activation_forward(TensorView y, ConstTensorView x, Activation activation, Stream& stream);
// Stream-ordered. dx = dy * act'(x); dx may be dy.
void activation_backward(TensorView dx, ConstTensorView dy, ConstTensorView x, Activation activation, Stream& stream);

// Stream-ordered. out [R,C] = a [R,C] + b [R,C] + bias [C] (when it has data); out may be a or b.
void add_bias_residual(TensorView out, ConstTensorView a, ConstTensorView b, ConstTensorView bias, Stream& stream);

}  // namespace ashlar::kernels
