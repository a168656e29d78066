// Layer norm of the own rows, with its parameters, held in full by every tensor rank.
#pragma once

#include "parallel/layers/layer.h"

namespace ashlar {

class LayerNorm {
 public:
  struct Saved {
    TensorView out;   // own rows, without data when the norm does not keep it: the caller brings a place
    TensorView mean;  // [B*T], or [B*T/t]
    TensorView rstd;  // likewise
  };
  struct Pending {
    TensorView dgamma;  // [C] of this micro-batch's own rows
    TensorView dbeta;   // [C]
  };

  LayerNorm(const std::string& name, int64_t width, double epsilon, DType dtype, bool keeps_output = true);

  Saved saved_layout(Arena& arena, const BatchShape& shape) const;
  Pending pending_layout(Arena& arena) const;

  void forward(LayerContext& context, const Saved& saved, ConstTensorView x);
  // The same of x = a + b + bias [C], which is written to `sum`; sum may be a or b.
  void forward_of_sum(LayerContext& context, const Saved& saved, TensorView sum, ConstTensorView a, ConstTensorView b,
                      ConstTensorView bias);
  // dx = dresidual (when it has data) + gradient through the norm; fills pending.
  void backward_input(LayerContext& context, TensorView dx, const Pending& pending, ConstTensorView dy,
                      ConstTensorView dresidual, ConstTensorView x, const Saved& saved);
  void backward_weight(LayerContext& context, const Pending& pending);

  Parameter gamma;  // [C]
  Parameter beta;   // [C]

 private:
  int64_t width_;
  double epsilon_;
  DType dtype_;
  bool keeps_output_;
};

}  // namespace ashlar
