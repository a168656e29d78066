// What a backward pass makes again instead of finding it saved.
#pragma once

#include <cstdint>

namespace ashlar {

// Within a block (--recompute-granularity selective): what its forward pass does not keep.
struct SelectiveRecompute {
  bool core_attn = false;  // the heads' output and its log-sum-exp
  bool layernorm = false;  // the outputs of both norms
  bool mlp_act = false;    // the activation's output
};

// Whole blocks (--recompute-granularity full): of a group of blocks only the input is kept, and their forward passes
// run again before their backward passes.
enum class RecomputeMethod {
  kNone,
  kUniform,  // a stage's blocks are cut into groups of num_layers, the last may be smaller
  kBlock,    // each of a stage's first num_layers blocks is a group, the others keep everything
};

struct Recompute {
  RecomputeMethod method = RecomputeMethod::kNone;
  int64_t num_layers = 1;
  SelectiveRecompute selective{};
};

}  // namespace ashlar
