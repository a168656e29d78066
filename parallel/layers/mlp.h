// The feed-forward half of a block: column-parallel, activation, row-parallel.
#pragma once

#include "kernels/activation.h"
#include "parallel/layers/linear.h"

namespace ashlar {

class Mlp {
 public:
  struct Saved {
    TensorView pre;  // [B,T,F/t] before the activation
    TensorView act;  // [B,T,F/t] behind it, unless it is made again
  };
  struct Pending {
    TensorView dpre;  // [B,T,F/t]
  };

  Mlp(const std::string& name, int64_t width, int64_t ffn, kernels::Activation activation, int tensor_rank,
      int tensor_size, double init_std, double output_init_std, DType dtype, bool recomputes_act = false);

  Saved saved_layout(Arena& arena, const BatchShape& shape) const;
  Pending pending_layout(Arena& arena, const BatchShape& shape) const;
  size_t workspace_bytes(const BatchShape& shape) const;  // largest need of a pass

  // All passes are collective. y without the output bias, x, dx: own rows, [B,T,C] or [1,B*T/t,C]; dy [B,T,C].
  // Without y's data only what is saved is made.
  void forward(LayerContext& context, TensorView y, ConstTensorView x, const Saved& saved);
  void backward_input(LayerContext& context, TensorView dx, const Pending& pending, ConstTensorView dy,
                      const Saved& saved);
  void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x, const Pending& pending,
                       const Saved& saved);

  ColumnParallelLinear up;  // [F/t,C]
  RowParallelLinear down;   // [C,F/t]

 private:
  // Where the activation's output is: saved, or scratch.
  TensorView act_of(const Saved& saved, Arena& workspace, const BatchShape& shape) const;

  int64_t local_ffn_;  // F/t
  kernels::Activation activation_;
  DType dtype_;
  bool recomputes_act_;
};

}  // namespace ashlar
