// The residual stream under sequence parallelism (Korthikanti et al., arXiv:2205.05198, section 4.2.2): tensor rank r
// holds the r-th of t equal parts of the flattened rows [B*T,C], so norms, dropout and sums run on B*T/t rows. What
// needs all rows gathers them, and a sum over the tensor axis reaches each rank for its own rows only: the all-gather
// and the reduce-scatter that an all-reduce is made of, with the layers between them. The parts are contiguous, so no
// collective transposes; for one sample they are parts of the sequence.
//
// Where a shape does not split its rows, every rank's own rows are all of them, and nothing here costs anything.
#pragma once

#include "parallel/layers/layer.h"

namespace ashlar {

// Pure. This rank's rows of x [B,T,C]: [1,B*T/t,C], or x itself.
template <typename View>
View own_rows(const LayerContext& context, View x) {
  if (!context.shape.splits_rows()) {
    return x;
  }
  const int64_t width = x.shape[-1], own = context.shape.own_rows(), first = context.rows().first;
  return x.reshaped({context.shape.all_rows(), width}).slice(first, first + own).reshaped({1, own, width});
}

// Scratch of all rows [B,T,C], or nothing where rows are not split.
TensorView take_all_rows(Arena& arena, DType dtype, const BatchShape& shape, int64_t width);
// Pure. Its bytes.
size_t all_rows_bytes(DType dtype, const BatchShape& shape, int64_t width);

// all [B,T,C] = the own rows of every rank. `own` may be this rank's part of `all`. Returns what holds all rows: `own`
// where rows are not split. Collective.
ConstTensorView gather_rows(LayerContext& context, TensorView all, ConstTensorView own);

// Where a rank makes its part [B,T,C] of a sum over the tensor axis that ends in `own`: scratch as above, or `own`
// itself.
TensorView take_partial(Arena& arena, const BatchShape& shape, TensorView own);

// own = this rank's rows of the sum of `partial` [B,T,C] over the tensor axis; `partial` is `own` where rows are not
// split, and scratch otherwise. Collective.
void sum_rows(LayerContext& context, TensorView own, TensorView partial);

}  // namespace ashlar
