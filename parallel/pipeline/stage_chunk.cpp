#include "parallel/pipeline/stage_chunk.h"

#include <algorithm>

namespace ashlar {

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

bool StageChunk::ends_group(size_t layer) const {
  const size_t group = group_of(layer);
  return group != kNone && layer + 1 == groups_[group].end;
}

bool StageChunk::reads_values(ActionKind kind, size_t layer) const {
  const Layer& of = *layers_[layer];
  switch (kind) {
    case ActionKind::kBackwardInput:
      return of.input_pass_reads_values();
    case ActionKind::kBackwardWeight:
      return of.weight_pass_reads_values();
    case ActionKind::kBackward:
      return of.input_pass_reads_values() || of.weight_pass_reads_values();
    default:
      return true;
  }
}

size_t StageChunk::first_read(ActionKind kind) const {
  return kind == ActionKind::kForward ? 0 : first_read_below(kind, num_layers());
}

size_t StageChunk::first_read_below(ActionKind kind, size_t end) const {
  for (size_t layer = end; layer-- > 0;) {
    if (kind != ActionKind::kBackwardWeight && ends_group(layer)) {
      return groups_[group_of(layer)].begin;
    }
    if (reads_values(kind, layer)) {
      return layer;
    }
  }
  return kNoLayer;
}

size_t StageChunk::next_read(ActionKind kind, size_t layer) const {
  const size_t next = first_read_below(kind, layer);
  return next != kNoLayer && next + 1 == layer ? next : kNoLayer;
}

std::vector<Parameter*> StageChunk::parameters() const {
  std::vector<Parameter*> all;
  for (const std::vector<Parameter*>& of_layer : parameters_by_layer()) {
    all.insert(all.end(), of_layer.begin(), of_layer.end());
  }
  return all;
}

std::vector<std::vector<Parameter*>> StageChunk::parameters_by_layer() const {
  std::vector<std::vector<Parameter*>> all;
  for (const auto& layer : layers_) {
    all.push_back(layer->parameters());
  }
  return all;
}

ConstTensorView StageChunk::input_of(const ActivationSlot& slot, size_t layer) const {
  return layer == 0 ? ConstTensorView(slot.input) : ConstTensorView(slot.outputs[layer - 1]);
}

ConstTensorView StageChunk::doutput_of(const GradientSlot& grads, ConstTensorView doutput, size_t layer) const {
  return layer + 1 == num_layers() ? doutput : ConstTensorView(grads.between[layer]);
}

void StageChunk::forward(const StagePass& pass, ActivationSlot& slot, const ActivationHook& hook) {
  LayerContext& context = pass.context;
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
      hook(stage_, pass.microbatch, static_cast<int>(layer), false, input);
    }
    pass.sync.need_values(stage_, layer, layer + 1 < num_layers() ? layer + 1 : kNoLayer);
    layers_[layer]->forward(context, output, input, {slot.saved[layer], Arena()});
    pass.sync.done_values(stage_, layer);
    if (hook) {
      hook(stage_, pass.microbatch, static_cast<int>(layer), true, output.data != nullptr ? output : slot.losses);
    }
    if (ends_group(layer)) {
      context.workspace.reset_to(mark);
    }
  }
}

// Runs a group's forward passes again, to the bits of the first time; its last output is there already.
void StageChunk::recompute(ActionKind kind, const RecomputeGroup& group, const StagePass& pass, ActivationSlot& slot,
                           Arena& arena) {
  group_layout(arena, group, pass.context.shape, slot);
  for (size_t layer = group.begin; layer < group.end; ++layer) {
    const bool is_last = layer + 1 == group.end;
    pass.sync.need_values(stage_, layer, is_last ? next_read(kind, layer) : layer + 1);
    layers_[layer]->forward(pass.context, is_last ? TensorView{} : slot.outputs[layer], input_of(slot, layer),
                            {slot.saved[layer], Arena()});
    if (!is_last) {
      pass.sync.done_values(stage_, layer);
    }
  }
}

void StageChunk::layer_backward_input(size_t layer, LayerContext& context, ActivationSlot& slot, GradientSlot& grads,
                                      TensorView dinput, ConstTensorView doutput) {
  layers_[layer]->backward_input(context, layer == 0 ? dinput : grads.between[layer - 1],
                                 doutput_of(grads, doutput, layer), input_of(slot, layer),
                                 {slot.saved[layer], grads.pending[layer]});
}

void StageChunk::layer_backward_weight(size_t layer, const StagePass& pass, ActivationSlot& slot, GradientSlot& grads,
                                       ConstTensorView doutput) {
  pass.context.grad_write = pass.sync.need_grads(stage_, layer, pass.microbatch);
  layers_[layer]->backward_weight(pass.context, doutput_of(grads, doutput, layer), input_of(slot, layer),
                                  {slot.saved[layer], grads.pending[layer]});
  if (pass.on_gradients != nullptr && *pass.on_gradients) {
    (*pass.on_gradients)(stage_, pass.microbatch, layer);
  }
  pass.sync.done_grads(stage_, layer, pass.microbatch);
}

void StageChunk::backward_input(const StagePass& pass, ActivationSlot& slot, GradientSlot& grads, TensorView dinput,
                                ConstTensorView doutput) {
  constexpr ActionKind kKind = ActionKind::kBackwardInput;
  pass.context.batch = slot.batch;
  for (size_t layer = num_layers(); layer-- > 0;) {
    const bool reads = ends_group(layer) || reads_values(kKind, layer);
    if (ends_group(layer)) {
      Arena kept = grads.groups[group_of(layer)];
      recompute(kKind, groups_[group_of(layer)], pass, slot, kept);
    } else if (reads) {
      pass.sync.need_values(stage_, layer, next_read(kKind, layer));
    }
    layer_backward_input(layer, pass.context, slot, grads, dinput, doutput);
    if (reads) {
      pass.sync.done_values(stage_, layer);
    }
  }
}

void StageChunk::backward_weight(const StagePass& pass, ActivationSlot& slot, GradientSlot& grads,
                                 ConstTensorView doutput) {
  constexpr ActionKind kKind = ActionKind::kBackwardWeight;
  pass.context.batch = slot.batch;
  for (size_t layer = num_layers(); layer-- > 0;) {
    const bool reads = reads_values(kKind, layer);
    if (reads) {
      pass.sync.need_values(stage_, layer, next_read(kKind, layer));
    }
    layer_backward_weight(layer, pass, slot, grads, doutput);
    if (reads) {
      pass.sync.done_values(stage_, layer);
    }
  }
}

void StageChunk::backward(const StagePass& pass, ActivationSlot& slot, GradientSlot& grads, TensorView dinput,
                          ConstTensorView doutput) {
  constexpr ActionKind kKind = ActionKind::kBackward;
  LayerContext& context = pass.context;
  context.batch = slot.batch;
  size_t mark = 0;
  for (size_t layer = num_layers(); layer-- > 0;) {
    const size_t group = group_of(layer);
    const bool reads = ends_group(layer) || reads_values(kKind, layer);
    const bool weight_pass_reads = reads_values(ActionKind::kBackwardWeight, layer);
    if (ends_group(layer)) {
      mark = context.workspace.mark();
      recompute(kKind, groups_[group], pass, slot, context.workspace);
    } else if (reads) {
      pass.sync.need_values(stage_, layer, next_read(kKind, layer));
    }
    layer_backward_input(layer, context, slot, grads, dinput, doutput);
    if (reads && !weight_pass_reads) {
      pass.sync.done_values(stage_, layer);
    }
    layer_backward_weight(layer, pass, slot, grads, doutput);
    if (weight_pass_reads) {
      pass.sync.done_values(stage_, layer);
    }
    if (group != kNone && layer == groups_[group].begin) {
      context.workspace.reset_to(mark);
    }
  }
}

}  // namespace ashlar
