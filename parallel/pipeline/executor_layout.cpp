// What an executor lays out before the first step: its lists prepared for running, and all memory that they need.
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/pipeline/executor.h"

namespace ashlar {
namespace {

void require_valid(const Schedule& schedule) {
  const std::vector<std::string> faults = validate(schedule);
  DCHECK(faults.empty(), "schedule {}: {}", schedule.name, fmt::join(faults, "; "));
}

}  // namespace

Executor::Executor(RankContext& rank, const ProcessGrid& grid, Stream& stream, const Schedule& training,
                   const Schedule& evaluation, std::vector<StageChunk*> chunks, const BatchShape& shape,
                   ParamSync& sync)
    : rank_(rank),
      grid_(grid),
      stream_(stream),
      training_schedule_(training),
      evaluation_schedule_(evaluation),
      shape_(shape),
      sync_(sync) {
  require_valid(training);
  require_valid(evaluation);
  const auto& placement = training.stage_to_rank;
  stage_index_.assign(placement.size(), -1);
  for (StageChunk* chunk : chunks) {
    const auto at = static_cast<size_t>(chunk->stage());
    DCHECK(placement[at] == grid.pipeline().rank(), "stage {} belongs to pipeline rank {}", at, placement[at]);
    stage_index_[at] = static_cast<int>(stages_.size());
    Stage& stage = stages_.emplace_back();
    stage.chunk = chunk;
    if (!chunk->is_first()) {
      stage.previous_rank = placement[at - 1];
      stage.previous_is_here = stage.previous_rank == placement[at];
    }
    if (!chunk->is_last()) {
      stage.next_rank = placement[at + 1];
      stage.next_is_here = stage.next_rank == placement[at];
    }
  }

  training_program_ = prepare(training, false);
  evaluation_program_ = prepare(evaluation, true);

  allocate();
  host_batches_.create_events(rank.device);
  context_ = std::make_unique<LayerContext>(LayerContext{
      .stream = stream_, .tensor = grid.tensor(), .workspace = workspace_, .shape = shape, .batch = {}, .losses = {}});
}

Executor::Program Executor::prepare(const Schedule& schedule, bool forward_only) {
  Program program;
  program.num_microbatches = schedule.num_microbatches;
  for (const Action& action : schedule.actions[static_cast<size_t>(grid_.pipeline().rank())]) {
    if (!program.steps.empty()) {
      program.steps.back().joins_next = is_transfer(program.steps.back().action.kind) && is_transfer(action.kind);
    }
    program.steps.push_back({action, action_text(action), slot_events(schedule, action, forward_only)});
  }
  find_next_reads(program.steps);
  return program;
}

// From the end of each window to its start.
void Executor::find_next_reads(std::vector<Step>& steps) {
  const Action* end = nullptr;  // of the window
  size_t next = kNoLayer;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const Action& action = step->action;
    if (action.kind == ActionKind::kReshard) {
      end = &action;
      next = kNoLayer;
    } else if (end != nullptr && action.stage == end->stage) {
      step->next_read = next;
      if (action.kind == ActionKind::kUnshard) {
        end = nullptr;
      } else if (is_compute(action.kind) && !stage_of(action.stage).chunk->reads(action.kind).empty()) {
        next = stage_of(action.stage).chunk->reads(action.kind).front();
      }
    }
  }
}

int Executor::most_microbatches() const {
  return std::max(training_schedule_.num_microbatches, evaluation_schedule_.num_microbatches);
}

void Executor::allocate() {
  std::vector<StageRequest> requests;
  for (const Stage& stage : stages_) {
    requests.push_back({stage.chunk,
                        count_slots_of_both(training_schedule_, evaluation_schedule_, stage.chunk->stage()),
                        stage.previous_is_here});
  }
  bytes_ = pipeline_bytes(requests, shape_, most_microbatches());
  activations_ = rank_.device.allocate(bytes_.activations, "activations", MemoryItem::kActivations);
  gradients_ = rank_.device.allocate(bytes_.gradients, "gradients between layers", MemoryItem::kActivationGradients);
  workspace_buffer_ = rank_.device.allocate(bytes_.workspace, "workspace of layers", MemoryItem::kWorkspace);
  host_buffer_ = rank_.device.allocate_host(bytes_.host, "micro-batches in host memory", MemoryItem::kBatches);
  const auto arena = [](const Buffer& buffer) { return Arena(buffer.data(), buffer.bytes()); };
  PipelineArenas arenas{arena(activations_), arena(gradients_), arena(workspace_buffer_), arena(host_buffer_)};
  PipelineMemory memory = lay_out_pipeline(arenas, requests, shape_, most_microbatches());
  for (size_t at = 0; at < stages_.size(); ++at) {
    Stage& stage = stages_[at];
    const SlotCounts& slots = requests[at].slots;
    static_cast<StageMemory&>(stage) = std::move(memory.stages[at]);
    stage.receiving_activation.resize(stage.activations.size());
    stage.sending_activation.resize(stage.activations.size());
    stage.receiving_gradient.resize(stage.output_gradients.size());
    stage.pools = {SlotPool(most_microbatches(), slots.activations),
                   SlotPool(most_microbatches(), slots.output_gradients),
                   SlotPool(most_microbatches(), slots.pending_gradients)};
  }
  workspace_ = memory.workspace;
  loss_sums_ = memory.loss_sums;
  totals_ = memory.totals;
  host_totals_ = memory.host_totals;
  host_batches_ = std::move(memory.host_batches);
}

}  // namespace ashlar
