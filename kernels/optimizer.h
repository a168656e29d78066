// Parameter updates over flat ranges. Every element's result depends only on that element, so a range may be cut
// anywhere without changing a bit. All numbers of an update lie in device memory, so that the host never waits for one.
#pragma once

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. From totals [2] fp64 (sum of losses, counted targets of the global batch) and squares [n] fp64 (parts
// of the squared norm of the gradients as accumulated, summed in ascending order) to results [kNumStepResults] and
// scalars [kNumUpdateScalars], fp64:
//   scale = nominal_targets / targets;  norm = scale sqrt(sum of squares);  factor = scale min(1, clip_grad / norm)
// results[kStepFinite] is 1 before the first step. It falls to 0 when the loss or the norm is not finite; with
// skip_not_finite it then stays 0 and nothing is updated until the caller sets it to 1 again. Without targets nothing
// is updated either.
void finish_step(TensorView results, TensorView scalars, ConstTensorView totals, ConstTensorView squares,
                 const StepSettings& settings, Stream& stream);

// AdamW (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2 with a constant schedule multiplier folded into the
// rate), with `scalars` of finish_step:
//   g = factor * grad;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g g
//   p = p (1 - rate * decay) - rate * (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + epsilon)
// Stream-ordered. param, first_moment, second_moment [n]: fp32 or fp64; grad [n]: the same, or bf16. copy [n] (bf16 or
// fp16, or without data) = param rounded.
void adamw_step(TensorView param, TensorView first_moment, TensorView second_moment, ConstTensorView grad,
                TensorView copy, ConstTensorView scalars, double weight_decay, Stream& stream);

// Stream-ordered. p = p (1 - rate * decay) - rate * factor * grad, and the copy, as above.
void sgd_step(TensorView param, ConstTensorView grad, TensorView copy, ConstTensorView scalars, double weight_decay,
              Stream& stream);

}  // namespace ashlar::kernels
