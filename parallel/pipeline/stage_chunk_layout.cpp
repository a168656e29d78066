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
    const bool keeps_output = group == kNone || ends_group(slot.saved.size());
    slot.saved.push_back(group == kNone ? take_arena(arena, layer->bytes(shape).saved) : Arena());
    if (layer->has_output()) {
      slot.outputs.push_back(keeps_output ? boundary_layout(arena, shape) : TensorView{});
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

}  // namespace ashlar
