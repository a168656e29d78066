// The update: one global norm, one clip factor, then AdamW or SGD over this rank's tensors.
#pragma once

#include <vector>

#include "parallel/zero/parameter_store.h"

namespace ashlar {

enum class OptimizerKind { kAdamW, kSgd };

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // on tensors that decay
  double clip_grad = 1.0;      // largest global L2 norm; 0 switches clipping off
};

class Optimizer {
 public:
  Optimizer(RankContext& rank, const ProcessGrid& grid, Stream& stream, ParameterStore& store,
            const OptimizerConfig& config);

  // Collective over the model group; blocks the host. L2 norm of grad_scale * gradients over all distinct parameters:
  // squares are summed in fp64 over fixed blocks of each tensor rank's slice, and the slices' sums in one fixed order,
  // so the result does not depend on which stage or data rank owns what. Infinity or NaN when any gradient is.
  double grad_norm(double grad_scale);

  // Stream-ordered. Applies grad_scale * clip factor. `norm` is what grad_norm returned.
  void update(double learning_rate, double grad_scale, double norm);

  int64_t num_updates() const { return num_updates_; }
  void set_num_updates(int64_t count) { num_updates_ = count; }
  size_t state_bytes() const { return moments_.bytes(); }

  // Moments of an entry of the store, in the parameter's local shape; without data for SGD and shared values.
  struct Moments {
    TensorView first;
    TensorView second;
  };
  const std::vector<Moments>& moments() const { return moment_views_; }

 private:
  const ProcessGrid& grid_;
  Stream& stream_;
  ParameterStore& store_;
  OptimizerConfig config_;
  int64_t num_updates_ = 0;
  Buffer moments_;
  std::vector<Moments> moment_views_;  // by entry of the store
  Tensor block_sums_;                  // [blocks of the largest tensor] fp64
  Tensor tensor_sums_;                 // [tensors of all stages, t] fp64
  Tensor scalars_;                     // [kernels::kNumUpdateScalars] fp64
  std::vector<size_t> sum_index_;      // by entry: its row in tensor_sums_
};

}  // namespace ashlar
