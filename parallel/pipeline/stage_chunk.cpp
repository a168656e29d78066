#include "parallel/pipeline/stage_chunk.h"

#include <algorithm>

namespace ashlar {

// One pass' walk over what it reads: names the layer that comes next.
class StageChunk::Reads {
 public:
  Reads(const StageChunk& chunk, ActionKind kind, const StagePass& pass)
      : stage_(chunk.stage()), layers_(chunk.reads(kind)), pass_(pass) {}

  void need(size_t layer) {
    DCHECK(at_ < layers_.size() && layers_[at_] == layer, "layer {} of stage {} is not read next", layer, stage_);
    ++at_;
    pass_.sync.need_values(stage_, layer, at_ < layers_.size() ? layers_[at_] : pass_.next_read);
  }
  void done(size_t layer) { pass_.sync.done_values(stage_, layer); }

 private:
  int stage_;
  const std::vector<size_t>& layers_;
  const StagePass& pass_;
  size_t at_ = 0;
};

StageChunk::StageChunk(int stage, bool is_first, bool is_last, std::vector<std::unique_ptr<Layer>> layers,
                       int64_t width, DType dtype, std::vector<RecomputeGroup> groups)
    : stage_(stage),
      is_first_(is_first),
      is_last_(is_last),
      layers_(std::move(layers)),
      width_(width),
      dtype_(dtype),
      groups_(std::move(groups)) {
  for (const ActionKind kind :
       {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
    reads_[static_cast<size_t>(kind)] = find_reads(kind);
  }
}

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

// A group's forward passes run again in front of its last layer's backward pass, which finds the values in place.
std::vector<size_t> StageChunk::find_reads(ActionKind kind) const {
  std::vector<size_t> reads;
  if (kind == ActionKind::kForward) {
    for (size_t layer = 0; layer < num_layers(); ++layer) {
      reads.push_back(layer);
    }
    return reads;
  }
  for (size_t layer = num_layers(); layer-- > 0;) {
    if (kind != ActionKind::kBackwardWeight && ends_group(layer)) {
      for (size_t again = groups_[group_of(layer)].begin; again <= layer; ++again) {
        reads.push_back(again);
      }
    } else if (reads_values(kind, layer)) {
      reads.push_back(layer);
    }
  }
  return reads;
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
  Reads values(*this, ActionKind::kForward, pass);
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
    values.need(layer);
    layers_[layer]->forward(context, output, input, {slot.saved[layer], Arena()});
    values.done(layer);
    if (hook) {
      hook(stage_, pass.microbatch, static_cast<int>(layer), true, output.data != nullptr ? output : slot.losses);
    }
    if (ends_group(layer)) {
      context.workspace.reset_to(mark);
    }
  }
}

// Runs a group's forward passes again, to the bits of the first time; its last output is there already.
void StageChunk::recompute(const RecomputeGroup& group, Reads& values, const StagePass& pass, ActivationSlot& slot,
                           Arena& arena) {
  group_layout(arena, group, pass.context.shape, slot);
  for (size_t layer = group.begin; layer < group.end; ++layer) {
    const bool is_last = layer + 1 == group.end;
    values.need(layer);
    layers_[layer]->forward(pass.context, is_last ? TensorView{} : slot.outputs[layer], input_of(slot, layer),
                            {slot.saved[layer], Arena()});
    if (!is_last) {
      values.done(layer);
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
  Reads values(*this, kKind, pass);
  pass.context.batch = slot.batch;
  for (size_t layer = num_layers(); layer-- > 0;) {
    const bool reads = ends_group(layer) || reads_values(kKind, layer);
    if (ends_group(layer)) {
      Arena kept = grads.groups[group_of(layer)];
      recompute(groups_[group_of(layer)], values, pass, slot, kept);
    } else if (reads) {
      values.need(layer);
    }
    layer_backward_input(layer, pass.context, slot, grads, dinput, doutput);
    if (reads) {
      values.done(layer);
    }
  }
}

void StageChunk::backward_weight(const StagePass& pass, ActivationSlot& slot, GradientSlot& grads,
                                 ConstTensorView doutput) {
  constexpr ActionKind kKind = ActionKind::kBackwardWeight;
  Reads values(*this, kKind, pass);
  pass.context.batch = slot.batch;
  for (size_t layer = num_layers(); layer-- > 0;) {
    const bool reads = reads_values(kKind, layer);
    if (reads) {
      values.need(layer);
    }
    layer_backward_weight(layer, pass, slot, grads, doutput);
    if (reads) {
      values.done(layer);
    }
  }
}

void StageChunk::backward(const StagePass& pass, ActivationSlot& slot, GradientSlot& grads, TensorView dinput,
                          ConstTensorView doutput) {
  constexpr ActionKind kKind = ActionKind::kBackward;
  LayerContext& context = pass.context;
  Reads values(*this, kKind, pass);
  context.batch = slot.batch;
  size_t mark = 0;
  for (size_t layer = num_layers(); layer-- > 0;) {
    const size_t group = group_of(layer);
    const bool reads = ends_group(layer) || reads_values(kKind, layer);
    const bool weight_pass_reads = reads_values(ActionKind::kBackwardWeight, layer);
    if (ends_group(layer)) {
      mark = context.workspace.mark();
      recompute(groups_[group], values, pass, slot, context.workspace);
    } else if (reads) {
      values.need(layer);
    }
    layer_backward_input(layer, context, slot, grads, dinput, doutput);
    if (reads && !weight_pass_reads) {
      values.done(layer);
    }
    layer_backward_weight(layer, pass, slot, grads, doutput);
    if (weight_pass_reads) {
      values.done(layer);
    }
    if (group != kNone && layer == groups_[group].begin) {
      context.workspace.reset_to(mark);
    }
  }
}

}  // namespace ashlar
