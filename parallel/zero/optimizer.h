// The update: one global norm, one clip factor, then AdamW or SGD over this rank's tensors. All numbers of an update
// stay in device memory, so the host never waits for one. Where the store is sharded, each data rank holds masters and
// moments of what it owns and updates that; ValueGather brings the values to the others.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallel/zero/offloaded_state.h"
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
            const OptimizerConfig& config, const OffloadConfig& offload = {});

  // Collective over the model group, and over the data axis where the store is sharded; stream-ordered. Squared
  // gradients of all distinct parameters, summed in fp64 over fixed blocks of each tensor rank's slice, and the blocks
  // of a slice in order: squares() does not depend on which stage or data rank owns what.
  void sum_squares();
  ConstTensorView squares() const { return tensor_sums_; }  // [tensors of all stages, t] fp64

  // Stream-ordered, behind sum_squares(); blocks the host where state is offloaded. Updates what this rank owns.
  // `totals` [2] fp64 and `results` [kernels::kNumStepResults] fp64 are those of kernels::finish_step, in device
  // memory. Counts as an update, though the device skips it when loss or norm is not finite; whoever learns that takes
  // it back with set_num_updates(). When a layer is done with, `updated` is told its index in FlatLayout::layers, on
  // all ranks that share out the state or on none.
  void update(
      TensorView results, ConstTensorView totals, const UpdateRequest& request,
      const std::function<void(size_t layer)>& updated = [](size_t) {});

  // Pure. Blocks of the norm of a tensor of this many elements, and of all distinct tensors.
  static int64_t num_norm_blocks(int64_t num_elements);
  static int64_t num_norm_blocks(const std::vector<Parameter*>& parameters);
  // Pure. Moments, and masters of 16-bit values, that a rank holds.
  static int64_t state_bytes(const FlatLayout& layout, DType dtype, OptimizerKind kind);

  int64_t num_updates() const { return num_updates_; }
  void set_num_updates(int64_t count) { num_updates_ = count; }
  size_t state_bytes() const { return moments_.bytes() + masters_.bytes(); }
  bool has_moments() const { return config_.kind == OptimizerKind::kAdamW; }
  OffloadedState* offloaded() const { return offloaded_.get(); }  // null: the state is in device memory

  struct Moments {
    TensorView first;
    TensorView second;
  };
  // A range of an entry's local slice, row-major, that this rank updates; everything [n], flat.
  struct Piece {
    size_t entry = 0;
    int64_t begin = 0;  // of the slice's elements
    TensorView grad;
    TensorView value;
    TensorView master;  // of a 16-bit value in fp32; the value itself where it is not rounded
    Moments moments;    // no data under SGD
  };
  // Pure. Without sharding every tensor whole; never a part of a shared value.
  const std::vector<Piece>& pieces() const { return pieces_; }

  enum class StateKind { kMaster, kFirstMoment, kSecondMoment };
  // Pure. What is saved of a piece; no data for the moments of SGD.
  TensorView state_of(size_t piece, StateKind kind) const;
  // Blocks the host. Where state_of() has a shape and no data, because it is offloaded: OffloadedState::bring.
  std::byte* bring_state(size_t piece, StateKind kind, bool changes) const;
  // Stream-ordered. Behind a write into masters: rounds them into the values that this rank owns
  // (ValueGather::updated() brings these to the others).
  void round_masters();

  // Blocks the host. Starting values before rounding, in host memory (ParameterStore::TakeUnrounded).
  void take_masters(size_t entry, const std::vector<float>& values);

 private:
  void allocate_state(Device& device);
  void update_piece(const Piece& piece);
  std::vector<int64_t> gather_rows(Device& device);
  void place_tensors(Device& device);
  void sum_blocks();
  bool has_masters() const { return offloaded_ ? offloaded_->kinds().masters : masters_.bytes() > 0; }

  const ProcessGrid& grid_;
  Stream& stream_;
  ParameterStore& store_;
  OptimizerConfig config_;
  int64_t num_updates_ = 0;
  Buffer moments_;
  Buffer masters_;
  std::unique_ptr<OffloadedState> offloaded_;
  std::vector<Piece> pieces_;
  Tensor block_sums_;               // [blocks of all distinct tensors] fp64
  std::vector<int64_t> blocks_of_;  // by entry: where its blocks begin
  Tensor tensor_sums_;              // [tensors of all stages, t] fp64
  Tensor scalars_;                  // [kernels::kNumUpdateScalars] fp64
  std::vector<size_t> sum_index_;   // by entry: its row in tensor_sums_
};

}  // namespace ashlar
