// Linear layers split over the tensor axis (Shoeybi et al., arXiv:1909.08053, section 3): a column-parallel one
// followed by a row-parallel one costs one all-reduce forward (behind the row one) and one backward (behind the column
// one). Where ranks hold parts of the rows, each is a reduce-scatter, and the other side gathers: the column one its
// input, forward and again for its weight's gradient, and whoever calls the row one the gradient of its output.
#pragma once

#include "parallel/layers/residual.h"

namespace ashlar {

// y [R,N/t] = x [R,C] W^T + b: every rank holds some of the outputs.
class ColumnParallelLinear {
 public:
  // `global` is [N,C], or [G,N,C] for G stacked blocks of which each is split (query, key, value).
  ColumnParallelLinear(const std::string& name, Shape global, int tensor_rank, int tensor_size, double init_std,
                       DType dtype);

  // Of x and dx a rank has and gets its own rows; all passes are collective. Scratch of each in the workspace:
  size_t workspace_bytes(const BatchShape& shape) const {
    return all_rows_bytes(weight.value.dtype, shape, matrix_[1]);
  }
  void forward(LayerContext& context, TensorView y, ConstTensorView x);
  // pre [R,N/t] = x W^T + b, y [R,N/t] = act(pre).
  void forward(LayerContext& context, TensorView y, TensorView pre, ConstTensorView x, kernels::Activation activation);
  // dx, summed over the tensor axis.
  void backward_input(LayerContext& context, TensorView dx, ConstTensorView dy);
  void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x);

  Parameter weight;  // [N/t,C] or [G,N/t,C]
  Parameter bias;    // [N/t] or [G,N/t]

 private:
  ConstTensorView gather(LayerContext& context, ConstTensorView x) const;

  Shape matrix_;  // weight as one matrix, [G*N/t,C]
};

// y = own rows of x [R,K/t] W^T summed over the tensor axis. The bias is added by the caller, once, behind the sum. In
// backward the caller brings the gradient of all rows, dy [R,C].
class RowParallelLinear {
 public:
  RowParallelLinear(const std::string& name, int64_t out, int64_t in, int tensor_rank, int tensor_size, double init_std,
                    DType dtype);

  size_t workspace_bytes(const BatchShape& shape) const;                 // of forward
  void forward(LayerContext& context, TensorView y, ConstTensorView x);  // Collective.
  void backward_input(LayerContext& context, TensorView dx, ConstTensorView dy);
  // The same through the activation in front: x = act(pre), dpre [R,K/t] = dx * act'(pre [R,K/t]).
  void backward_input(LayerContext& context, TensorView dpre, ConstTensorView dy, ConstTensorView pre,
                      kernels::Activation activation);
  // The bias' gradient is that of the own rows.
  void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x);

  Parameter weight;  // [C,K/t]
  Parameter bias;    // [C], held by every tensor rank
};

}  // namespace ashlar
