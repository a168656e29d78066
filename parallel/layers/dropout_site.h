// A place in the model where elements are dropped: its name and its probability.
#pragma once

#include <string_view>

#include "parallel/layers/layer.h"

namespace ashlar {

class DropoutSite {
 public:
  DropoutSite(std::string_view name, double probability);

  bool can_drop() const { return probability_ > 0; }
  bool drops(const LayerContext& context) const { return can_drop() && context.training; }
  // Pure. The mask of this pass, with probability 0 outside training.
  kernels::Dropout mask(const LayerContext& context, int64_t first_head = 0) const;

 private:
  uint64_t stream_;
  double probability_;
};

}  // namespace ashlar
