#include "parallel/layers/residual.h"

#include "runtime/base/error.h"

namespace ashlar {

TensorView take_all_rows(Arena& arena, DType dtype, const BatchShape& shape, int64_t width) {
  return shape.splits_rows() ? take_tensor(arena, dtype, {shape.batch, shape.seq, width}) : TensorView{};
}

size_t all_rows_bytes(DType dtype, const BatchShape& shape, int64_t width) {
  Arena counting;
  take_all_rows(counting, dtype, shape, width);
  return counting.used();
}

ConstTensorView gather_rows(LayerContext& context, TensorView all, ConstTensorView own) {
  if (!context.shape.splits_rows()) {
    return own;
  }
  context.tensor.all_gather(all, own, context.stream).wait(context.stream);
  return all;
}

TensorView take_partial(Arena& arena, const BatchShape& shape, TensorView own) {
  return shape.splits_rows() ? take_all_rows(arena, own.dtype, shape, own.shape[-1]) : own;
}

void sum_rows(LayerContext& context, TensorView own, TensorView partial) {
  if (context.shape.splits_rows()) {
    context.tensor.reduce_scatter(own, partial, ReduceOp::kSum, context.stream).wait(context.stream);
    return;
  }
  DCHECK(own.data == partial.data, "the sum over the tensor axis is taken in place");
  context.tensor.all_reduce(own, ReduceOp::kSum, context.stream).wait(context.stream);
}

}  // namespace ashlar
