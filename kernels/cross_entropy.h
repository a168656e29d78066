// Cross-entropy over a vocabulary that is split across ranks, without gathering logits (Shoeybi et al.,
// arXiv:1909.08053, section 3): each rank reduces its own columns to three numbers per row, the ranks exchange those,
// and each finishes alone.
#pragma once

#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// stats and losses are fp32 (fp64 where logits are).

// Stream-ordered. stats [N,3] of this rank's columns of logits [N,V/t]: the largest logit, the sum of exp(logit -
// largest) and the target's logit (0 where the target is another rank's). Only the first num_valid columns count; the
// rest is padding. A rank without valid columns gives (-infinity, 0, 0). targets [N] int32.
void cross_entropy_stats(TensorView stats, ConstTensorView logits, ConstTensorView targets, int64_t vocab_begin,
                         int64_t num_valid, Stream& stream);

// Stream-ordered. all_stats [t,N,3]: the stats of all ranks in rank order. losses [N] = mask * (log-sum-exp - target
// logit), mask [N] is 0 or 1 (fp32). When `gradient` is set, logits become scale * mask * (softmax - onehot), padding
// columns 0.
void cross_entropy_finish(TensorView losses, TensorView logits, ConstTensorView all_stats, ConstTensorView targets,
                          ConstTensorView mask, int64_t vocab_begin, int64_t num_valid, double scale, bool gradient,
                          Stream& stream);

}  // namespace ashlar::kernels
