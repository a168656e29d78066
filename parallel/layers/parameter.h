// A trainable tensor as a layer declares it. The parameter store binds its memory later.
#pragma once

#include <string>

#include "runtime/tensor/shard_spec.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

struct Parameter {
  std::string name;  // global name, Hugging Face's: "h.0.attn.c_attn.weight"
  ShardSpec shard;
  double init_std = 0;  // normal with this deviation around init_mean; 0 means constant
  double init_mean = 0;
  bool decays = false;  // weight decay applies: tensors of two or more dims, not biases and norms
  // The second use of a tied tensor (the output head of a tied model): shares the value when both uses are on one rank,
  // holds an equal copy otherwise; has a gradient of its own; is neither counted in the norm nor saved.
  bool tied_copy = false;
  bool tied_first = false;  // the first use of a tensor that also has a tied copy

  // Each tensor rank has the gradient of its own rows (sequence parallelism): the whole is their sum.
  bool sum_over_tensor = false;

  TensorView value;  // [shard.local()]
  TensorView grad;   // [shard.local()]
};

}  // namespace ashlar
