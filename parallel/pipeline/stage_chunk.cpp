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
                       int64_t width, DType dtype)
    : stage_(stage), is_first_(is_first), is_last_(is_last), layers_(std::move(layers)), width_(width), dtype_(dtype) {}

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
  return take_tensor(arena, dtype_, {shape.batch, shape.seq, width_});
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
    slot.saved.push_back(take_arena(arena, layer->bytes(shape).saved));
    if (layer->has_output()) {
      slot.outputs.push_back(boundary_layout(arena, shape));
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
  for (const auto& layer : layers_) {
    largest = std::max(largest, layer->bytes(shape).workspace);
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
  for (size_t layer = 0; layer < num_layers(); ++layer) {
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
  layers_[layer]->backward_weight(context, doutput_of(grads, doutput, layer),
                                  {slot.saved[layer], grads.pending[layer]});
}

void StageChunk::backward_input(LayerContext& context, ActivationSlot& slot, GradientSlot& grads, TensorView dinput,
                                ConstTensorView doutput) {
  context.batch = slot.batch;
  for (size_t layer = num_layers(); layer-- > 0;) {
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
  for (size_t layer = num_layers(); layer-- > 0;) {
    layer_backward_input(layer, context, slot, grads, dinput, doutput);
    layer_backward_weight(layer, context, slot, grads, doutput);
  }
}

}  // namespace ashlar
