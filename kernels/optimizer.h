// Parameter updates over flat ranges. Every element's result depends only on that element, so a range may be cut
// anywhere without changing a bit.
#pragma once

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. param, first_moment, second_moment, grad: [n].
void adamw_step(TensorView param, TensorView first_moment, TensorView second_moment, ConstTensorView grad,
                const AdamWArgs& args, Stream& stream);

// Stream-ordered. p = p (1 - rate * decay) - rate * grad_scale * grad.
void sgd_step(TensorView param, ConstTensorView grad, double rate, double weight_decay, double grad_scale,
              Stream& stream);

}  // namespace ashlar::kernels
