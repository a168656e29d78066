#include "parallel/pipeline/pipeline_memory.h"

#include <algorithm>

namespace ashlar {
namespace {

StageMemory lay_out_stage(PipelineArenas& arenas, const StageRequest& request, const BatchShape& shape) {
  const StageChunk& chunk = *request.chunk;
  const SlotCounts& slots = request.slots;
  StageMemory memory;
  for (int slot = 0; slot < slots.activations; ++slot) {
    memory.activations.push_back(chunk.activation_layout(arenas.activations, shape));
  }
  for (int slot = 0; slot < slots.output_gradients; ++slot) {
    memory.output_gradients.push_back(chunk.boundary_layout(arenas.gradients, shape));
  }
  for (int slot = 0; slot < std::max(slots.pending_gradients, 1); ++slot) {
    memory.gradients.push_back(chunk.gradient_layout(arenas.gradients, shape, slots.pending_gradients > 0));
  }
  if (!chunk.is_first() && !request.previous_is_here) {
    for (TensorView& gradient : memory.input_gradients) {
      gradient = chunk.boundary_layout(arenas.gradients, shape);
    }
  }
  return memory;
}

}  // namespace

SlotCounts count_slots_of_both(const Schedule& training, const Schedule& evaluation, int stage) {
  SlotCounts slots = count_slots(training, stage, false);
  slots.activations = std::max(slots.activations, count_slots(evaluation, stage, true).activations);
  return slots;
}

PipelineMemory lay_out_pipeline(PipelineArenas& arenas, std::span<const StageRequest> stages, const BatchShape& shape,
                                int num_microbatches) {
  PipelineMemory memory;
  size_t workspace_bytes = 0;
  bool reads_batches = false;
  for (const StageRequest& request : stages) {
    memory.stages.push_back(lay_out_stage(arenas, request, shape));
    workspace_bytes = std::max(workspace_bytes, request.chunk->workspace_bytes(shape));
    reads_batches = reads_batches || request.chunk->is_first() || request.chunk->is_last();
  }
  std::byte* workspace = arenas.workspace.take(workspace_bytes);
  memory.workspace = workspace == nullptr ? Arena() : Arena(workspace, workspace_bytes);
  memory.loss_sums = take_tensor(arenas.workspace, DType::kF64, {num_microbatches});
  memory.totals = take_tensor(arenas.workspace, DType::kF64, {2});
  memory.host_totals = take_tensor(arenas.host, DType::kF64, {2});
  if (reads_batches) {
    memory.host_batches.lay_out(arenas.host, shape, num_microbatches);
  }
  return memory;
}

PipelineBytes pipeline_bytes(std::span<const StageRequest> stages, const BatchShape& shape, int num_microbatches) {
  PipelineArenas counting;
  lay_out_pipeline(counting, stages, shape, num_microbatches);
  return {.activations = counting.activations.used(),
          .gradients = counting.gradients.used(),
          .workspace = counting.workspace.used(),
          .host = counting.host.used()};
}

}  // namespace ashlar
