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

  Arena counting;
  lay_out(counting);
  buffer_ = rank.device.allocate(counting.used(), "activations, gradients between layers and workspace");
  Arena arena(buffer_.data(), buffer_.bytes());
  lay_out(arena);
  Arena counting_host;
  lay_out_host(counting_host);
  host_buffer_ = rank.device.allocate_host(counting_host.used(), "micro-batches in host memory");
  Arena host_arena(host_buffer_.data(), host_buffer_.bytes());
  lay_out_host(host_arena);
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
  for (auto step = program.steps.begin(); step != program.steps.end(); ++step) {
    if (step->action.kind == ActionKind::kUnshard) {
      const auto inside = std::find_if(step, program.steps.end(), [&](const Step& other) {
        return is_compute(other.action.kind) && other.action.stage == step->action.stage;
      });
      step->first_layer = inside == program.steps.end()
                              ? kNoLayer
                              : stage_of(step->action.stage).chunk->first_read(inside->action.kind);
    }
  }
  return program;
}

int Executor::most_microbatches() const {
  return std::max(training_schedule_.num_microbatches, evaluation_schedule_.num_microbatches);
}

void Executor::lay_out_host(Arena& arena) {
  host_totals_ = take_tensor(arena, DType::kF64, {2});
  if (reads_batches()) {
    host_batches_.lay_out(arena, shape_, most_microbatches());
  }
}

void Executor::lay_out(Arena& arena) {
  size_t workspace_bytes = 0;
  bytes_ = {};
  for (Stage& stage : stages_) {
    const StageChunk& chunk = *stage.chunk;
    const SlotCounts training = count_slots(training_schedule_, chunk.stage(), false);
    const SlotCounts evaluation = count_slots(evaluation_schedule_, chunk.stage(), true);
    const int num_activations = std::max(training.activations, evaluation.activations);
    const bool split_backward = training.pending_gradients > 0;
    const size_t before = arena.used();

    stage.activations.clear();
    for (int slot = 0; slot < num_activations; ++slot) {
      stage.activations.push_back(chunk.activation_layout(arena, shape_));
    }
    stage.receiving_activation.assign(stage.activations.size(), Work());
    stage.sending_activation.assign(stage.activations.size(), Work());
    const size_t behind_activations = arena.used();

    stage.output_gradients.clear();
    for (int slot = 0; slot < training.output_gradients; ++slot) {
      stage.output_gradients.push_back(chunk.boundary_layout(arena, shape_));
    }
    stage.receiving_gradient.assign(stage.output_gradients.size(), Work());
    stage.gradients.clear();
    for (int slot = 0; slot < std::max(training.pending_gradients, 1); ++slot) {
      stage.gradients.push_back(chunk.gradient_layout(arena, shape_, split_backward));
    }
    if (!chunk.is_first() && !stage.previous_is_here) {
      stage.input_gradients = {chunk.boundary_layout(arena, shape_), chunk.boundary_layout(arena, shape_)};
    }
    stage.pools = {SlotPool(most_microbatches(), num_activations),
                   SlotPool(most_microbatches(), training.output_gradients),
                   SlotPool(most_microbatches(), training.pending_gradients)};
    bytes_.activations += behind_activations - before;
    bytes_.gradients += arena.used() - behind_activations;
    workspace_bytes = std::max(workspace_bytes, chunk.workspace_bytes(shape_));
  }
  const size_t before = arena.used();
  std::byte* workspace = arena.take(workspace_bytes);
  workspace_ = arena.counting() ? Arena() : Arena(workspace, workspace_bytes);
  loss_sums_ = take_tensor(arena, DType::kF64, {most_microbatches()});
  totals_ = take_tensor(arena, DType::kF64, {2});
  bytes_.workspace = arena.used() - before;
}

}  // namespace ashlar
