// Parameter updates over flat ranges. Every element's result depends only on that element, so a range may be cut
// anywhere without changing a bit.
#pragma once

#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// AdamW (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2 with a constant schedule multiplier folded into the
// rate):
//   g = grad_scale * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g g
//   p = p (1 - rate * decay) - rate * (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + epsilon)
struct AdamWArgs {
  double rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double grad_scale = 1;
  int64_t step = 1;  // 1 for the first update
};

// Stream-ordered. param, first_moment, second_moment, grad: [n].
void adamw_step(TensorView param, TensorView first_moment, TensorView second_moment, ConstTensorView grad,
                const AdamWArgs& args, Stream& stream);

// Stream-ordered. p = p (1 - rate * decay) - rate * grad_scale * grad.
void sgd_step(TensorView param, ConstTensorView grad, double rate, double weight_decay, double grad_scale,
              Stream& stream);

}  // namespace ashlar::kernels
