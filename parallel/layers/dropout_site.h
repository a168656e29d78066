// A place in the model where elements are dropped: its name and its probability.
#pragma once

#include <string_view>

#include "parallel/layers/residual.h"

namespace ashlar {

class DropoutSite {
 public:
  DropoutSite(std::string_view name, double probability);

  bool can_drop() const { return probability_ > 0; }
  bool drops(const LayerContext& context) const { return can_drop() && context.training; }
  // Pure. The mask of this pass, with probability 0 outside training.
  kernels::Dropout mask(const LayerContext& context, int64_t first_head = 0) const;

  // The gradient in front of the dropout, of all rows [B,T,C], from dy, which is that of the own rows: made in `to`, or
  // dy itself where nothing drops and rows are not split. Collective where they are.
  ConstTensorView backward(LayerContext& context, TensorView to, ConstTensorView dy) const;
  // `to` [B,T,C]; nothing where it is not needed.
  TensorView backward_layout(Arena& arena, DType dtype, const BatchShape& shape, int64_t width) const;

 private:
  uint64_t stream_;
  double probability_;
};

}  // namespace ashlar
