// The update: one global norm, one clip factor, then AdamW or SGD over this rank's tensors. All numbers of an update
// stay in device memory, so the host never waits for one.
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

// What one update needs besides the gradients.
struct UpdateRequest {
  double nominal_targets = 1;  // gradients were accumulated as sums over targets divided by this
  double learning_rate = 0;
  bool skip_not_finite = true;
};

class Optimizer {
 public:
  // Where values are 16 bits wide, the optimizer owns fp32 masters of them; the values are rounded copies.
  Optimizer(RankContext& rank, const ProcessGrid& grid, Stream& stream, ParameterStore& store,
            const OptimizerConfig& config);

  // Collective over the model group; stream-ordered. Squared gradients of all distinct parameters, summed in fp64 over
  // fixed blocks of each tensor rank's slice, and the blocks of a slice in order: squares() does not depend on which
  // stage or data rank owns what.
  void sum_squares();
  ConstTensorView squares() const { return tensor_sums_; }  // [tensors of all stages, t] fp64

  // Stream-ordered, behind sum_squares(). `totals` [2] fp64 and `results` [kernels::kNumStepResults] fp64 are those of
  // kernels::finish_step, in device memory. Counts as an update, though the device skips it when loss or norm is not
  // finite; whoever learns that takes it back with set_num_updates().
  void update(TensorView results, ConstTensorView totals, const UpdateRequest& request);

  // Collective over the model group; blocks the host. L2 norm of grad_scale * gradients, the same number as in results.
  // For whoever looks from outside.
  double grad_norm(double grad_scale);

  int64_t num_updates() const { return num_updates_; }
  void set_num_updates(int64_t count) { num_updates_ = count; }
  size_t state_bytes() const { return moments_.bytes() + masters_.bytes(); }
  bool has_moments() const { return config_.kind == OptimizerKind::kAdamW; }

  // Moments of an entry of the store, in the parameter's local shape; without data for SGD and shared values.
  struct Moments {
    TensorView first;
    TensorView second;
  };
  const std::vector<Moments>& moments() const { return moment_views_; }

  // What is updated and saved, by entry of the store: the fp32 master of a 16-bit value, else the value itself.
  const std::vector<TensorView>& masters() const { return master_views_; }
  // Stream-ordered. Behind a load of masters: the values become their rounded copies.
  void round_masters();

 private:
  void allocate_state(Device& device);
  void place_tensors(Device& device);

  const ProcessGrid& grid_;
  Stream& stream_;
  ParameterStore& store_;
  OptimizerConfig config_;
  int64_t num_updates_ = 0;
  Buffer moments_;
  std::vector<Moments> moment_views_;  // by entry of the store
  Buffer masters_;
  std::vector<TensorView> master_views_;  // by entry of the store
  Tensor block_sums_;                     // [blocks of the largest tensor] fp64
  Tensor tensor_sums_;                    // [tensors of all stages, t] fp64
  Tensor scalars_;                        // [kernels::kNumUpdateScalars] fp64
  std::vector<size_t> sum_index_;         // by entry: its row in tensor_sums_
};

}  // namespace ashlar
