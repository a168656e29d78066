#include "parallel/layers/linear.h"

#include "kernels/matmul.h"
#include "kernels/stat_dtype.h"

namespace ashlar {
namespace {

// Rows of a [.., C] tensor as one matrix.
template <typename View>
View as_matrix(View x, int64_t columns) {
  return x.reshaped({x.num_elements() / columns, columns});
}

Parameter make_parameter(std::string name, ShardSpec shard, double init_std, bool decays, DType dtype) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shard = shard;
  parameter.init_std = init_std;
  parameter.decays = decays;
  parameter.value.dtype = dtype;
  parameter.grad.dtype = kernels::stat_dtype(dtype);
  return parameter;
}

Shape without_last(const Shape& shape) {
  Shape out;
  for (int dim = 0; dim + 1 < shape.num_dims(); ++dim) {
    out.append(shape[dim]);
  }
  return out;
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const std::string& name, Shape global, int tensor_rank, int tensor_size,
                                           double init_std, DType dtype) {
  const int out_dim = global.num_dims() - 2;
  weight = make_parameter(name + ".weight", ShardSpec::split(global, out_dim, tensor_rank, tensor_size), init_std, true,
                          dtype);
  bias = make_parameter(name + ".bias", ShardSpec::split(without_last(global), out_dim, tensor_rank, tensor_size), 0,
                        false, dtype);
  const Shape local = weight.shard.local();
  matrix_ = {local.num_elements() / local[-1], local[-1]};
}

void ColumnParallelLinear::forward(LayerContext& context, TensorView y, ConstTensorView x) {
  const size_t mark = context.workspace.mark();
  const ConstTensorView all = gather(context, x);  // [R,C]
  kernels::linear_forward(as_matrix(y, matrix_[0]), as_matrix(all, matrix_[1]), weight.value.reshaped(matrix_),
                          bias.value.reshaped({matrix_[0]}), context.stream);
  context.workspace.reset_to(mark);
}

void ColumnParallelLinear::forward(LayerContext& context, TensorView y, TensorView pre, ConstTensorView x,
                                   kernels::Activation activation) {
  const size_t mark = context.workspace.mark();
  const ConstTensorView all = gather(context, x);  // [R,C]
  kernels::linear_activation_forward(as_matrix(y, matrix_[0]), as_matrix(pre, matrix_[0]), as_matrix(all, matrix_[1]),
                                     weight.value.reshaped(matrix_), bias.value.reshaped({matrix_[0]}), activation,
                                     context.stream);
  context.workspace.reset_to(mark);
}

void ColumnParallelLinear::backward_input(LayerContext& context, TensorView dx, ConstTensorView dy) {
  const size_t mark = context.workspace.mark();
  const TensorView partial = take_partial(context.workspace, context.shape, dx);  // [B,T,C]
  kernels::linear_backward_input(as_matrix(partial, matrix_[1]), as_matrix(dy, matrix_[0]),
                                 weight.value.reshaped(matrix_), context.stream);
  sum_rows(context, dx, partial);
  context.workspace.reset_to(mark);
}

void ColumnParallelLinear::backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x) {
  const size_t mark = context.workspace.mark();
  const ConstTensorView all = gather(context, x);  // [R,C]
  kernels::linear_backward_weight(weight.grad.reshaped(matrix_), as_matrix(dy, matrix_[0]), as_matrix(all, matrix_[1]),
                                  context.grad_write, context.stream);
  kernels::bias_backward(bias.grad.reshaped({matrix_[0]}), as_matrix(dy, matrix_[0]), context.grad_write,
                         context.stream);
  context.workspace.reset_to(mark);
}

ConstTensorView ColumnParallelLinear::gather(LayerContext& context, ConstTensorView x) const {
  return gather_rows(context, take_all_rows(context.workspace, x.dtype, context.shape, matrix_[1]), x);
}

RowParallelLinear::RowParallelLinear(const std::string& name, int64_t out, int64_t in, int tensor_rank, int tensor_size,
                                     double init_std, DType dtype) {
  weight =
      make_parameter(name + ".weight", ShardSpec::split({out, in}, 1, tensor_rank, tensor_size), init_std, true, dtype);
  bias = make_parameter(name + ".bias", ShardSpec::replicated({out}), 0, false, dtype);
}

void RowParallelLinear::forward(LayerContext& context, TensorView y, ConstTensorView x) {
  const Shape local = weight.shard.local();
  const size_t mark = context.workspace.mark();
  const TensorView partial = take_partial(context.workspace, context.shape, y);  // [B,T,C]
  kernels::linear_forward(as_matrix(partial, local[0]), as_matrix(x, local[1]), weight.value, ConstTensorView{},
                          context.stream);
  sum_rows(context, y, partial);
  context.workspace.reset_to(mark);
}

size_t RowParallelLinear::workspace_bytes(const BatchShape& shape) const {
  return all_rows_bytes(weight.value.dtype, shape, weight.shard.local()[0]);
}

void RowParallelLinear::backward_input(LayerContext& context, TensorView dx, ConstTensorView dy) {
  const Shape local = weight.shard.local();
  kernels::linear_backward_input(as_matrix(dx, local[1]), as_matrix(dy, local[0]), weight.value, context.stream);
}

void RowParallelLinear::backward_input(LayerContext& context, TensorView dpre, ConstTensorView dy, ConstTensorView pre,
                                       kernels::Activation activation) {
  const Shape local = weight.shard.local();
  kernels::linear_activation_backward_input(as_matrix(dpre, local[1]), as_matrix(dy, local[0]), weight.value,
                                            as_matrix(pre, local[1]), activation, context.stream);
}

void RowParallelLinear::backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x) {
  const Shape local = weight.shard.local();
  kernels::linear_backward_weight(weight.grad, as_matrix(dy, local[0]), as_matrix(x, local[1]), context.grad_write,
                                  context.stream);
  kernels::bias_backward(bias.grad, as_matrix(own_rows(context, dy), local[0]), context.grad_write, context.stream);
}

}  // namespace ashlar
