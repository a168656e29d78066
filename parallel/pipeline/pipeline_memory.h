// The memory of a rank's stages. The executor lays it out and the planner counts it, with the same function.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "parallel/pipeline/host_batches.h"
#include "parallel/pipeline/slots.h"
#include "parallel/pipeline/stage_chunk.h"

namespace ashlar {

// What the memory of a stage depends on.
struct StageRequest {
  const StageChunk* chunk = nullptr;
  SlotCounts slots;
  bool previous_is_here = false;  // the stage before this one lives on the same rank
};

// Pure. Slots of a stage under both schedules, which are lowered.
SlotCounts count_slots_of_both(const Schedule& training, const Schedule& evaluation, int stage);

struct StageMemory {
  std::vector<StageChunk::ActivationSlot> activations;
  std::vector<TensorView> output_gradients;         // shape.residual(C), by slot
  std::vector<StageChunk::GradientSlot> gradients;  // by pending slot; one shared slot when backward is not split
  std::array<TensorView, 2> input_gradients;        // shape.residual(C), take turns on their way out
};

struct PipelineMemory {
  std::vector<StageMemory> stages;
  Arena workspace;           // within one pass
  TensorView loss_sums;      // [micro-batches] fp64
  TensorView totals;         // [2] fp64
  TensorView host_totals;    // [2] fp64, pinned
  HostBatches host_batches;  // empty where no stage reads micro-batches
};

// Arenas of one kind of memory each; default made, they count.
struct PipelineArenas {
  Arena activations;  // saved by forward, for each slot
  Arena gradients;    // between layers and stages, and pending weight gradients
  Arena workspace;
  Arena host;
};

// `num_microbatches` of the longer schedule.
PipelineMemory lay_out_pipeline(PipelineArenas& arenas, std::span<const StageRequest> stages, const BatchShape& shape,
                                int num_microbatches);

struct PipelineBytes {
  size_t activations = 0;
  size_t gradients = 0;
  size_t workspace = 0;
  size_t host = 0;  // pinned
  size_t total() const { return activations + gradients + workspace; }
};
// Pure. What lay_out_pipeline takes of each arena.
PipelineBytes pipeline_bytes(std::span<const StageRequest> stages, const BatchShape& shape, int num_microbatches);

}  // namespace ashlar
