#include "parallel/pipeline/stage_chunk.h"

#include <algorithm>

#include "kernels/stat_dtype.h"

namespace ashlar {
namespace {

// The next `bytes` of the arena as an arena of their own.
Arena take_arena(Arena& arena, size_t bytes) {
  std::byte* data = arena.take(bytes);
  return data == nullptr ? Arena() : Arena(data, bytes);
}

}  // namespace

StageChunk::StageChunk(int stage, bool is_first, bool is_last, std::vector<std::unique_ptr<Layer>> layers,
                       int64_t width, DType dtype, std::vector<RecomputeGroup> groups)
    : stage_(stage),
      is_first_(is_first),
      is_last_(is_last),
      layers_(std::move(layers)),
      width_(width),
      dtype_(dtype),
      groups_(std::move(groups)) {}

size_t StageChunk::group_of(size_t layer) const {
  const auto found = std::ranges::find_if(
      groups_, [layer](const RecomputeGroup& group) { return layer >= group.begin && layer < group.end; });
  return found == groups_.end() ? kNone : static_cast<size_t>(found - groups_.begin());
}

void StageChunk::group_layout(Arena& arena, const RecomputeGroup& group, const BatchShape& shape,
                              ActivationSlot& slot) const {
  for (size_t layer = group.begin; layer < group.end; ++layer) {
    slot.saved[layer] = take_arena(arena, layers_[layer]->bytes(shape).saved);
    if (layer + 1 < group.end) {
      slot.outputs[layer] = boundary_layout(arena, shape);
    }
  }
}

void StageChunk::scratch_layout(Arena& arena, const RecomputeGroup& group, const BatchShape& shape,
                                ActivationSlot& slot) const {
  size_t largest = 0;
  for (size_t layer = group.begin; layer < group.end; ++layer) {
    largest = std::max(largest, layers_[layer]->bytes(shape).saved);
  }
  const Arena shared = take_arena(arena, largest);
  TensorView turns[2];
  for (size_t layer = group.begin; layer < group.end; ++layer) {
    slot.saved[layer] = shared;
    if (layer + 1 < group.end) {
      TensorView& turn = turns[layer % 2];
      slot.outputs[layer] = turn = layer < group.begin + 2 ? boundary_layout(arena, shape) : turn;
    }
  }
}

size_t StageChunk::group_bytes(const RecomputeGroup& group, const BatchShape& shape, bool scratch) const {
  Arena counting;
  ActivationSlot unused;
  unused.saved.resize(num_layers());
  unused.outputs.resize(num_layers());
  scratch ? scratch_layout(counting, group, shape, unused) : group_layout(counting, group, shape, unused);
  return counting.used();
}

std::vector<Parameter*> StageChunk::parameters() const {
  std::vector<Parameter*> all;
  for (const auto& layer : layers_) {
    for (Parameter* parameter : layer->parameters()) {
      all.push_back(parameter);
    }
  }
  return all;
}

TensorView StageChunk::boundary_layout(Arena& arena, const BatchShape& shape) const {
  return take_tensor(arena, dtype_, shape.residual(width_));
}

StageChunk::ActivationSlot StageChunk::activation_layout(Arena& arena, const BatchShape& shape) const {
  ActivationSlot slot;
  const Shape tokens{shape.batch, shape.seq};
  if (is_first_ || is_last_) {
    slot.batch.tokens = take_tensor(arena, DType::kI32, tokens);
    slot.batch.targets = take_tensor(arena, DType::kI32, tokens);
    slot.batch.mask = take_tensor(arena, DType::kF32, tokens);
  }
  if (is_first_) {
    slot.batch.order = take_tensor(arena, DType::kI32, {tokens.num_elements()});
  }
  if (!is_first_) {
    slot.input = boundary_layout(arena, shape);
  }
  for (const auto& layer : layers_) {
    const size_t group = group_of(slot.saved.size());
    const bool ends_group = group != kNone && slot.saved.size() + 1 == groups_[group].end;
    slot.saved.push_back(group == kNone ? take_arena(arena, layer->bytes(shape).saved) : Arena());
    if (layer->has_output()) {
      slot.outputs.push_back(group == kNone || ends_group ? boundary_layout(arena, shape) : TensorView{});
    }
  }
  if (is_last_) {
    slot.losses = take_tensor(arena, kernels::stat_dtype(dtype_), tokens);
  }
  return slot;
}

StageChunk::GradientSlot StageChunk::gradient_layout(Arena& arena, const BatchShape& shape, bool split_backward) const {
  GradientSlot slot;
  if (split_backward) {
    for (const RecomputeGroup& group : groups_) {
      slot.groups.push_back(take_arena(arena, group_bytes(group, shape, false)));
    }
    for (size_t layer = 0; layer < num_layers(); ++layer) {
      slot.pending.push_back(take_arena(arena, layers_[layer]->bytes(shape).pending));
      if (layer + 1 < num_layers()) {
        slot.between.push_back(boundary_layout(arena, shape));
      }
    }
    return slot;
  }
  size_t largest = 0;
  for (const auto& layer : layers_) {
    largest = std::max(largest, layer->bytes(shape).pending);
  }
  const Arena shared = take_arena(arena, largest);
  slot.pending.assign(num_layers(), shared);
  if (num_layers() > 1) {
    const TensorView turns[2] = {boundary_layout(arena, shape), boundary_layout(arena, shape)};
    for (size_t layer = 0; layer + 1 < num_layers(); ++layer) {
      slot.between.push_back(turns[layer % 2]);
    }
  }
  return slot;
}

size_t StageChunk::workspace_bytes(const BatchShape& shape) const {
  size_t largest = 0;
  for (size_t layer = 0; layer < num_layers(); ++layer) {
    const size_t group = group_of(layer);
    const size_t around =
        group == kNone ? 0
                       : std::max(group_bytes(groups_[group], shape, false), group_bytes(groups_[group], shape, true));
    largest = std::max(largest, around + layers_[layer]->bytes(shape).workspace);
  }
  return largest;
}

size_t StageChunk::saved_bytes(const BatchShape& shape) const {
  Arena counting;
  activation_layout(counting, shape);
  return counting.used();
}

ConstTensorView StageChunk::input_of(const ActivationSlot& slot, size_t layer) const {
  return layer == 0 ? ConstTensorView(slot.input) : ConstTensorView(slot.outputs[layer - 1]);
}

ConstTensorView StageChunk::doutput_of(const GradientSlot& grads, ConstTensorView doutput, size_t layer) const {
  return layer + 1 == num_layers() ? doutput : ConstTensorView(grads.between[layer]);
}

void StageChunk::forward(LayerContext& context, ActivationSlot& slot, int microbatch, const ActivationHook& hook) {
  context.batch = slot.batch;
  context.losses = slot.losses;
  size_t mark = 0;
  for (size_t layer = 0; layer < num_layers(); ++layer) {
    const size_t group = group_of(layer);
    if (group != kNone && layer == groups_[group].begin) {
      mark = context.workspace.mark();
      scratch_layout(context.workspace, groups_[group], context.shape, slot);
    }
    const bool has_input = layer > 0 || !is_first_;
    const TensorView input = layer == 0 ? slot.input : slot.outputs[layer - 1];
    const TensorView output = layers_[layer]->has_output() ? slot.outputs[layer] : TensorView{};
    if (hook && has_input) {
      hook(stage_, microbatch, static_cast<int>(layer), false, input);
    }
    layers_[layer]->forward(context, output, input, {slot.saved[layer], Arena()});
    if (hook) {
      hook(stage_, microbatch, static_cast<int>(layer), true, output.data != nullptr ? output : slot.losses);
    }
    if (group != kNone && layer + 1 == groups_[group].end) {
      context.workspace.reset_to(mark);
    }
  }
}

// Runs a group's forward passes again, to the bits of the first time; its last output is there already.
void StageChunk::recompute(const RecomputeGroup& group, LayerContext& context, ActivationSlot& slot, Arena& arena) {
  group_layout(arena, group, context.shape, slot);
  for (size_t layer = group.begin; layer < group.end; ++layer) {
    const TensorView output = layer + 1 < group.end ? slot.outputs[layer] : TensorView{};
    layers_[layer]->forward(context, output, input_of(slot, layer), {slot.saved[layer], Arena()});
  }
}

void StageChunk::layer_backward_input(size_t layer, LayerContext& context, ActivationSlot& slot, GradientSlot& grads,
                                      TensorView dinput, ConstTensorView doutput) {
  layers_[layer]->backward_input(context, layer == 0 ? dinput : grads.between[layer - 1],
                                 doutput_of(grads, doutput, layer), input_of(slot, layer),
                                 {slot.saved[layer], grads.pending[layer]});
}

void StageChunk::layer_backward_weight(size_t layer, LayerContext& context, ActivationSlot& slot, GradientSlot& grads,
                                       ConstTensorView doutput) {
  layers_[layer]->backward_weight(context, doutput_of(grads, doutput, layer), input_of(slot, layer),
                                  {slot.saved[layer], grads.pending[layer]});
}

void StageChunk::backward_input(LayerContext& context, ActivationSlot& slot, GradientSlot& grads, TensorView dinput,
                                ConstTensorView doutput) {
  context.batch = slot.batch;
  for (size_t layer = num_layers(); layer-- > 0;) {
    const size_t group = group_of(layer);
    if (group != kNone && layer + 1 == groups_[group].end) {
      Arena kept = grads.groups[group];
      recompute(groups_[group], context, slot, kept);
    }
    layer_backward_input(layer, context, slot, grads, dinput, doutput);
  }
}

void StageChunk::backward_weight(LayerContext& context, ActivationSlot& slot, GradientSlot& grads,
                                 ConstTensorView doutput) {
  context.batch = slot.batch;
  for (size_t layer = num_layers(); layer-- > 0;) {
    layer_backward_weight(layer, context, slot, grads, doutput);
  }
}

void StageChunk::backward(LayerContext& context, ActivationSlot& slot, GradientSlot& grads, TensorView dinput,
                          ConstTensorView doutput) {
  context.batch = slot.batch;
  size_t mark = 0;
  for (size_t layer = num_layers(); layer-- > 0;) {
    const size_t group = group_of(layer);
    if (group != kNone && layer + 1 == groups_[group].end) {
      mark = context.workspace.mark();
      recompute(groups_[group], context, slot, context.workspace);
    }
    layer_backward_input(layer, context, slot, grads, dinput, doutput);
    layer_backward_weight(layer, context, slot, grads, doutput);
    if (group != kNone && layer == groups_[group].begin) {
      context.workspace.reset_to(mark);
    }
  }
}

}  // namespace ashlar
