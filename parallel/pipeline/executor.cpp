#include "parallel/pipeline/executor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/reduce.h"

namespace ashlar {
namespace {

void require_valid(const Schedule& schedule) {
  const std::vector<std::string> faults = validate(schedule);
  DCHECK(faults.empty(), "schedule {}: {}", schedule.name, fmt::join(faults, "; "));
}

// Both ends of a transfer compute the same tag: the stage whose boundary is crossed, the direction, the micro-batch.
int transfer_tag(const Action& action) {
  const bool forward = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvForward;
  const bool upper_end = action.kind == ActionKind::kRecvForward || action.kind == ActionKind::kSendBackward;
  const int boundary = upper_end ? action.stage : action.stage + 1;
  return ((boundary * 2 + (forward ? 1 : 0)) << 12) + (action.microbatch & 0xfff);
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
  training_program_ = prepare(training, false);
  evaluation_program_ = prepare(evaluation, true);

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

  Arena counting;
  lay_out(counting);
  buffer_ = rank.device.allocate(counting.used(), "activations, gradients between layers and workspace");
  Arena arena(buffer_.data(), buffer_.bytes());
  lay_out(arena);
  const auto most_microbatches = static_cast<size_t>(std::max(training.num_microbatches, evaluation.num_microbatches));
  num_targets_.assign(most_microbatches, 0);
  if (stages_.front().chunk->is_first() || stages_.back().chunk->is_last()) {
    const size_t count = most_microbatches * static_cast<size_t>(shape.batch * shape.seq);
    host_batches_ = {std::vector<int32_t>(count), std::vector<int32_t>(count), std::vector<float>(count)};
  }
  context_ = std::make_unique<LayerContext>(LayerContext{
      .stream = stream_, .tensor = grid.tensor(), .workspace = workspace_, .shape = shape, .batch = {}, .losses = {}});
}

Executor::Program Executor::prepare(const Schedule& schedule, bool forward_only) const {
  Program program;
  program.num_microbatches = schedule.num_microbatches;
  for (const Action& action : schedule.actions[static_cast<size_t>(grid_.pipeline().rank())]) {
    program.steps.push_back({action, action_text(action), slot_events(schedule, action, forward_only)});
  }
  return program;
}

void Executor::lay_out(Arena& arena) {
  const int most_microbatches = std::max(training_schedule_.num_microbatches, evaluation_schedule_.num_microbatches);
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
    stage.pools = {SlotPool(most_microbatches, num_activations), SlotPool(most_microbatches, training.output_gradients),
                   SlotPool(most_microbatches, training.pending_gradients)};
    bytes_.activations += behind_activations - before;
    bytes_.gradients += arena.used() - behind_activations;
    workspace_bytes = std::max(workspace_bytes, chunk.workspace_bytes(shape_));
  }
  const size_t before = arena.used();
  std::byte* workspace = arena.take(workspace_bytes);
  workspace_ = arena.counting() ? Arena() : Arena(workspace, workspace_bytes);
  loss_sums_ = take_tensor(arena, DType::kF64, {most_microbatches});
  bytes_.workspace = arena.used() - before;
}

LossSum Executor::train(const BatchReader& reader, double grad_scale, int64_t step) {
  return run(training_program_, reader, grad_scale, true, step);
}

LossSum Executor::evaluate(const BatchReader& reader, int64_t step) {
  return run(evaluation_program_, reader, 0, false, step);
}

LossSum Executor::run(const Program& program, const BatchReader& reader, double grad_scale, bool training,
                      int64_t step) {
  context_->training = training;
  context_->grad_scale = grad_scale;
  for (Stage& stage : stages_) {
    for (SlotPool& pool : stage.pools) {
      pool.reset();
    }
  }
  for (const Step& at : program.steps) {
    rank_.recorder.set_position(step, at.text.c_str(), at.action.microbatch);
    if (hooks_.before_action) {
      hooks_.before_action(at.action);
    }
    take_slots(at.slots.before);
    perform(at.action, reader);
    release_slots(at.slots.after);
  }
  for (Stage& stage : stages_) {
    for (Work& work : stage.sending_activation) {
      std::exchange(work, Work()).wait(stream_);
    }
    for (Work& work : stage.sending_gradient) {
      std::exchange(work, Work()).wait(stream_);
    }
  }
  stream_.synchronize();

  LossSum sum;
  if (stages_.back().chunk->is_last()) {
    for (int microbatch = 0; microbatch < program.num_microbatches; ++microbatch) {
      sum.loss += loss_sums_.as<double>()[microbatch];
      sum.num_targets += num_targets_[static_cast<size_t>(microbatch)];
    }
  }
  return sum;
}

void Executor::perform(const Action& action, const BatchReader& reader) {
  Stage& stage = stage_of(action.stage);
  const int microbatch = action.microbatch;
  auto& activations = stage.pools[static_cast<size_t>(SlotKind::kActivation)];
  auto& output_gradients = stage.pools[static_cast<size_t>(SlotKind::kOutputGradient)];
  switch (action.kind) {
    case ActionKind::kForward:
      forward(stage, microbatch, reader);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      backward(stage, action);
      break;
    case ActionKind::kSendForward: {
      const auto slot = static_cast<size_t>(activations.of(microbatch));
      stage.sending_activation[slot] =
          transfer(Transfer::Direction::kSend, stage.next_rank, action, stage.chunk->output(stage.activations[slot]));
      break;
    }
    case ActionKind::kRecvForward: {
      const auto slot = static_cast<size_t>(activations.of(microbatch));
      stage.receiving_activation[slot] =
          transfer(Transfer::Direction::kReceive, stage.previous_rank, action, stage.activations[slot].input);
      break;
    }
    case ActionKind::kSendBackward: {
      const auto turn = static_cast<size_t>(stage.turn);
      stage.sending_gradient[turn] =
          transfer(Transfer::Direction::kSend, stage.previous_rank, action, stage.input_gradients[turn]);
      stage.turn = 1 - stage.turn;
      break;
    }
    case ActionKind::kRecvBackward: {
      const auto slot = static_cast<size_t>(output_gradients.of(microbatch));
      stage.receiving_gradient[slot] =
          transfer(Transfer::Direction::kReceive, stage.next_rank, action, stage.output_gradients[slot]);
      break;
    }
    case ActionKind::kReduceGrads:
      sync_.reduce_grads(action.stage);
      break;
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
      throw Error(ErrorCode::kInternal, "parameters are not sharded: " + action_text(action));
  }
}

void Executor::forward(Stage& stage, int microbatch, const BatchReader& reader) {
  StageChunk& chunk = *stage.chunk;
  const auto slot = static_cast<size_t>(stage.pools[static_cast<size_t>(SlotKind::kActivation)].of(microbatch));
  StageChunk::ActivationSlot& memory = stage.activations[slot];
  if (chunk.is_first() || chunk.is_last()) {
    load_batch(stage, microbatch, memory.batch, reader);
  }
  std::exchange(stage.receiving_activation[slot], Work()).wait(stream_);
  chunk.forward(*context_, memory, microbatch, hooks_.on_activation);
  if (chunk.is_last()) {
    kernels::sum_in_order(loss_sums_.slice(microbatch, microbatch + 1),
                          memory.losses.reshaped({shape_.batch * shape_.seq}), stream_);
  }
  if (stage.next_is_here) {
    Stage& next = stage_of(chunk.stage() + 1);
    const auto next_slot = static_cast<size_t>(next.pools[static_cast<size_t>(SlotKind::kActivation)].of(microbatch));
    const TensorView output = chunk.output(memory);
    stream_.copy(next.activations[next_slot].input.data, output.data, output.bytes());
  }
}

void Executor::load_batch(Stage& stage, int microbatch, MicroBatch& to, const BatchReader& reader) {
  const Shape tokens{shape_.batch, shape_.seq};
  const auto begin = static_cast<size_t>(microbatch) * static_cast<size_t>(tokens.num_elements());
  MicroBatch host{view_of(host_batches_.tokens.data() + begin, tokens),
                  view_of(host_batches_.targets.data() + begin, tokens),
                  view_of(host_batches_.mask.data() + begin, tokens)};
  if (stage.chunk->is_first() || stage_index_.front() < 0) {  // where both ends are here, the first has read it
    reader(microbatch, host);
    const float* mask = host.mask.as<float>();
    num_targets_[static_cast<size_t>(microbatch)] = std::accumulate(mask, mask + tokens.num_elements(), 0.0);
  }
  stream_.copy(to.tokens.data, host.tokens.data, host.tokens.bytes());
  stream_.copy(to.targets.data, host.targets.data, host.targets.bytes());
  stream_.copy(to.mask.data, host.mask.data, host.mask.bytes());
}

void Executor::backward(Stage& stage, const Action& action) {
  StageChunk& chunk = *stage.chunk;
  const int microbatch = action.microbatch;
  const auto slot_in = [&](Stage& of, SlotKind kind) {
    return static_cast<size_t>(of.pools[static_cast<size_t>(kind)].of(microbatch));
  };
  StageChunk::ActivationSlot& memory = stage.activations[slot_in(stage, SlotKind::kActivation)];
  StageChunk::GradientSlot& gradients =
      stage.gradients[action.kind == ActionKind::kBackward ? 0 : slot_in(stage, SlotKind::kPendingGradient)];
  context_->grad_write = microbatch == 0 ? kernels::Write::kOverwrite : kernels::Write::kAdd;

  ConstTensorView doutput;
  if (!chunk.is_last()) {
    const size_t slot = slot_in(stage, SlotKind::kOutputGradient);
    std::exchange(stage.receiving_gradient[slot], Work()).wait(stream_);
    doutput = stage.output_gradients[slot];
  }
  if (action.kind == ActionKind::kBackwardWeight) {
    chunk.backward_weight(*context_, memory, gradients, doutput);
    return;
  }
  TensorView dinput;
  if (stage.previous_is_here) {
    Stage& previous = stage_of(chunk.stage() - 1);
    dinput = previous.output_gradients[slot_in(previous, SlotKind::kOutputGradient)];
  } else if (!chunk.is_first()) {
    std::exchange(stage.sending_gradient[static_cast<size_t>(stage.turn)], Work()).wait(stream_);
    dinput = stage.input_gradients[static_cast<size_t>(stage.turn)];
  }
  if (action.kind == ActionKind::kBackward) {
    chunk.backward(*context_, memory, gradients, dinput, doutput);
  } else {
    chunk.backward_input(*context_, memory, gradients, dinput, doutput);
  }
}

void Executor::take_slots(const std::vector<SlotEvent>& events) {
  for (const SlotEvent& event : events) {
    Stage& stage = stage_of(event.stage);
    const int slot = stage.pools[static_cast<size_t>(event.kind)].take(event.microbatch);
    if (event.kind == SlotKind::kActivation) {
      // The slot's last output may still be on its way to the next stage.
      std::exchange(stage.sending_activation[static_cast<size_t>(slot)], Work()).wait(stream_);
    }
  }
}

void Executor::release_slots(const std::vector<SlotEvent>& events) {
  for (const SlotEvent& event : events) {
    stage_of(event.stage).pools[static_cast<size_t>(event.kind)].release(event.microbatch);
  }
}

Executor::Stage& Executor::stage_of(int stage) {
  const int index = stage_index_[static_cast<size_t>(stage)];
  DCHECK(index >= 0, "stage {} is not on this rank", stage);
  return stages_[static_cast<size_t>(index)];
}

Work Executor::transfer(Transfer::Direction direction, int peer, const Action& action, TensorView data) {
  const Transfer leg{direction, peer, transfer_tag(action), data};
  return grid_.pipeline().exchange(std::span(&leg, 1), stream_);
}

}  // namespace ashlar
