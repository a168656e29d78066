// The layers of one pipeline stage, and where one micro-batch keeps its activations and gradients.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/layers/layer.h"
#include "parallel/pipeline/param_sync.h"
#include "parallel/schedule/action.h"

namespace ashlar {

// Called with each layer's input before it and each layer's output behind it, in order; may change the tensor (fault
// injection) or look at it (search for the first bad value). `layer` is an index within the stage.
using ActivationHook = std::function<void(int stage, int microbatch, int layer, bool is_output, TensorView activation)>;

// Behind a layer's backward_weight, while Parameter::grad holds what it wrote. For injected faults.
using GradientHook = std::function<void(int stage, int microbatch, size_t layer)>;

// Layers [begin, end) of a stage of which only the input is kept: their forward passes run again before their backward
// passes. The layer in front of them and the last of them have outputs.
struct RecomputeGroup {
  size_t begin = 0;
  size_t end = 0;
};

// What a pass of one micro-batch over a stage is given.
struct StagePass {
  LayerContext& context;
  ParamSync& sync;
  int microbatch = 0;
  size_t next_read = kNoLayer;  // what a later pass of the same window reads first
  const GradientHook* on_gradients = nullptr;
};

class StageChunk {
 public:
  // One micro-batch from its forward until its last backward.
  struct ActivationSlot {
    MicroBatch batch;  // on the first and the last stage
    TensorView input;  // shape.residual(C), not on the first stage
    // Of a group's layers, all but the last output lie in scratch, set anew by each pass.
    std::vector<TensorView> outputs;  // shape.residual(C) of each layer that has one
    std::vector<Arena> saved;         // of each layer
    TensorView losses;                // [B,T], on the last stage
  };
  // The gradients between layers and what backward_weight needs. When backward is not split, all layers share one
  // pending region and two gradient buffers take turns.
  struct GradientSlot {
    std::vector<TensorView> between;  // gradient of the output of each layer but the last
    std::vector<Arena> pending;       // of each layer
    std::vector<Arena> groups;  // what each group's second forward pass saves, when backward is split (else scratch)
  };

  StageChunk(int stage, bool is_first, bool is_last, std::vector<std::unique_ptr<Layer>> layers, int64_t width,
             DType dtype, std::vector<RecomputeGroup> groups = {});

  int stage() const { return stage_; }
  bool is_first() const { return is_first_; }
  bool is_last() const { return is_last_; }
  const std::vector<std::unique_ptr<Layer>>& layers() const { return layers_; }
  const std::vector<RecomputeGroup>& groups() const { return groups_; }
  std::vector<Parameter*> parameters() const;
  std::vector<std::vector<Parameter*>> parameters_by_layer() const;

  // Pure. The layers whose values a pass of this kind (F, B, I, W) reads, in its order.
  const std::vector<size_t>& reads(ActionKind kind) const { return reads_[static_cast<size_t>(kind)]; }

  // The same code counts (counting arena) and lays out (real arena).
  ActivationSlot activation_layout(Arena& arena, const BatchShape& shape) const;
  GradientSlot gradient_layout(Arena& arena, const BatchShape& shape, bool split_backward) const;
  TensorView boundary_layout(Arena& arena, const BatchShape& shape) const;  // between two stages
  size_t workspace_bytes(const BatchShape& shape) const;
  size_t saved_bytes(const BatchShape& shape) const;  // what activation_layout takes

  // Stream-ordered; Collective over the tensor axis, and where the pass' ParamSync is so.
  void forward(const StagePass& pass, ActivationSlot& slot, const ActivationHook& hook);
  // dinput and doutput: gradients of the stage's input (not on the first stage) and output (not on the last).
  void backward_input(const StagePass& pass, ActivationSlot& slot, GradientSlot& grads, TensorView dinput,
                      ConstTensorView doutput);
  void backward_weight(const StagePass& pass, ActivationSlot& slot, GradientSlot& grads, ConstTensorView doutput);
  void backward(const StagePass& pass, ActivationSlot& slot, GradientSlot& grads, TensorView dinput,
                ConstTensorView doutput);

  TensorView output(const ActivationSlot& slot) const { return slot.outputs.back(); }

 private:
  static constexpr size_t kNone = ~size_t{0};
  class Reads;

  size_t num_layers() const { return layers_.size(); }
  size_t group_of(size_t layer) const;  // kNone: outside all
  bool ends_group(size_t layer) const;
  bool reads_values(ActionKind kind, size_t layer) const;
  std::vector<size_t> find_reads(ActionKind kind) const;
  // Where a group's forward pass writes what its backward passes read: each layer has its own memory.
  void group_layout(Arena& arena, const RecomputeGroup& group, const BatchShape& shape, ActivationSlot& slot) const;
  // The same when only the forward pass itself reads it: all layers share memory.
  void scratch_layout(Arena& arena, const RecomputeGroup& group, const BatchShape& shape, ActivationSlot& slot) const;
  size_t group_bytes(const RecomputeGroup& group, const BatchShape& shape, bool scratch) const;
  // Leaves the values of the group's last layer in place, whose backward pass comes next.
  void recompute(const RecomputeGroup& group, Reads& values, const StagePass& pass, ActivationSlot& slot, Arena& arena);
  ConstTensorView input_of(const ActivationSlot& slot, size_t layer) const;
  ConstTensorView doutput_of(const GradientSlot& grads, ConstTensorView doutput, size_t layer) const;
  void layer_backward_input(size_t layer, LayerContext& context, ActivationSlot& slot, GradientSlot& grads,
                            TensorView dinput, ConstTensorView doutput);
  void layer_backward_weight(size_t layer, const StagePass& pass, ActivationSlot& slot, GradientSlot& grads,
                             ConstTensorView doutput);

  int stage_;
  bool is_first_;
  bool is_last_;
  std::vector<std::unique_ptr<Layer>> layers_;
  int64_t width_;
  DType dtype_;
  std::vector<RecomputeGroup> groups_;
  std::array<std::vector<size_t>, 4> reads_;  // by ActionKind
};

}  // namespace ashlar
