// Causal self-attention with its heads split over the tensor axis.
#pragma once

#include "parallel/layers/dropout_site.h"
#include "parallel/layers/linear.h"

namespace ashlar {

class SelfAttention {
 public:
  struct Saved {
    TensorView qkv;  // [B,T,3,H/t,D]
    TensorView out;  // [B,T,H/t,D], unless it is made again
    TensorView lse;  // [B,H/t,T], likewise
  };
  struct Pending {
    TensorView dqkv;  // [B,T,3,H/t,D]
    TensorView out;   // what is not saved, made again by backward_input
    TensorView lse;
  };

  SelfAttention(const std::string& name, int64_t width, int64_t num_heads, int tensor_rank, int tensor_size,
                double init_std, double output_init_std, double dropout, DType dtype, bool recomputes_core = false);

  Saved saved_layout(Arena& arena, const BatchShape& shape) const;
  Pending pending_layout(Arena& arena, const BatchShape& shape) const;
  size_t forward_workspace_bytes(const BatchShape& shape) const;  // at least that of backward_weight
  size_t workspace_bytes(const BatchShape& shape) const;          // of backward_input

  // All passes are collective. y without the output bias, x, dx: own rows, [B,T,C] or [1,B*T/t,C]; dy [B,T,C].
  void forward(LayerContext& context, TensorView y, ConstTensorView x, const Saved& saved);
  void backward_input(LayerContext& context, TensorView dx, const Pending& pending, ConstTensorView dy,
                      const Saved& saved);
  void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x, const Pending& pending,
                       const Saved& saved);

  ColumnParallelLinear query_key_value;  // [3,C/t,C]
  RowParallelLinear output;              // [C,C/t]

 private:
  struct Workspace {
    TensorView dout;       // [B,T,H/t,D]
    TensorView attention;  // what the kernel asks for
  };
  Workspace workspace_layout(Arena& arena, const BatchShape& shape) const;
  // The kernel's two results.
  template <typename Results>
  void results_layout(Results& results, Arena& arena, const BatchShape& shape) const;

  DropoutSite dropout_;  // of the probabilities
  int64_t first_head_;
  int64_t local_heads_;  // H/t
  int64_t head_dim_;     // D
  double scale_;         // 1/sqrt(D)
  DType dtype_;
  bool recomputes_core_;
};

}  // namespace ashlar
