#include "parallel/pipeline/executor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/reduce.h"
#include "runtime/comm/wait_reached.h"

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
  Arena counting_host;
  lay_out_host(counting_host);
  host_buffer_ = rank.device.allocate_host(counting_host.used(), "micro-batches in host memory");
  Arena host_arena(host_buffer_.data(), host_buffer_.bytes());
  lay_out_host(host_arena);
  for (HostBatches& set : host_batches_) {
    set.taken = rank.device.create_event();
  }
  context_ = std::make_unique<LayerContext>(LayerContext{
      .stream = stream_, .tensor = grid.tensor(), .workspace = workspace_, .shape = shape, .batch = {}, .losses = {}});
}

Executor::Program Executor::prepare(const Schedule& schedule, bool forward_only) const {
  Program program;
  program.num_microbatches = schedule.num_microbatches;
  for (const Action& action : schedule.actions[static_cast<size_t>(grid_.pipeline().rank())]) {
    if (!program.steps.empty()) {
      program.steps.back().joins_next = is_transfer(program.steps.back().action.kind) && is_transfer(action.kind);
    }
    program.steps.push_back({action, action_text(action), slot_events(schedule, action, forward_only)});
  }
  return program;
}

int Executor::most_microbatches() const {
  return std::max(training_schedule_.num_microbatches, evaluation_schedule_.num_microbatches);
}

void Executor::lay_out_host(Arena& arena) {
  host_totals_ = take_tensor(arena, DType::kF64, {2});
  if (!reads_batches()) {
    return;
  }
  const Shape tokens{shape_.batch, shape_.seq};
  for (HostBatches& set : host_batches_) {
    set.batches.clear();
    for (int microbatch = 0; microbatch < most_microbatches(); ++microbatch) {
      MicroBatch& batch = set.batches.emplace_back();
      batch.tokens = take_tensor(arena, DType::kI32, tokens);
      batch.targets = take_tensor(arena, DType::kI32, tokens);
      batch.mask = take_tensor(arena, DType::kF32, tokens);
      batch.order = take_tensor(arena, DType::kI32, {tokens.num_elements()});
    }
    set.num_targets = take_tensor(arena, DType::kF64, {1});
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

void Executor::train(const BatchReader& reader, double grad_scale, int64_t step, uint64_t seed,
                     int64_t consumed_samples) {
  context_->masks = {.seed = seed, .step = step, .first_sample = 0};
  consumed_samples_ = consumed_samples;
  run_or_end_job(training_program_, reader, grad_scale, true, step);
}

void Executor::evaluate(const BatchReader& reader, int64_t step) {
  run_or_end_job(evaluation_program_, reader, 0, false, step);
}

// A data set may fail on one rank in the middle of a list: its device then waits for messages of ranks that wait for
// it, and memory must not go before the device is done with it.
void Executor::run_or_end_job(const Program& program, const BatchReader& reader, double grad_scale, bool training,
                              int64_t step) {
  try {
    end_job_on_error(rank_, [&] { run(program, reader, grad_scale, training, step); });
  } catch (const AgreedError&) {
    throw;  // no rank waits for another
  } catch (const Error&) {
    settle();
    throw;
  }
}

void Executor::settle() noexcept {
  try {
    for (Stage& stage : stages_) {
      for (auto* works : {&stage.receiving_activation, &stage.sending_activation, &stage.receiving_gradient}) {
        for (Work& work : *works) {
          std::exchange(work, Work()).wait(stream_);
        }
      }
      for (Work& work : stage.sending_gradient) {
        std::exchange(work, Work()).wait(stream_);
      }
    }
  } catch (const std::exception&) {
    // The job has ended, and the first error says why.
  }
  try {
    stream_.synchronize();
  } catch (const std::exception&) {
    // As above.
  }
}

LossSum Executor::read_totals() {
  stream_.copy(host_totals_.data, totals_.data, totals_.bytes());
  stream_.synchronize();
  return {host_totals_.as<double>()[0], host_totals_.as<double>()[1]};
}

void Executor::run(const Program& program, const BatchReader& reader, double grad_scale, bool training, int64_t step) {
  context_->training = training;
  context_->grad_scale = grad_scale;
  for (Stage& stage : stages_) {
    for (SlotPool& pool : stage.pools) {
      pool.reset();
    }
  }
  begin_host_batches();
  for (const Step& at : program.steps) {
    rank_.recorder.set_position(step, at.text.c_str(), at.action.microbatch);
    if (hooks_.before_action) {
      hooks_.before_action(at.action);
    }
    take_slots(at.slots.before);
    if (is_transfer(at.action.kind)) {
      leg_works_.push_back(&prepare_transfer(at.action));
    } else {
      perform(at.action, reader);
    }
    release_slots(at.slots.after);
    if (!legs_.empty() && !at.joins_next) {
      const Work work = grid_.pipeline().exchange(legs_, stream_);
      for (Work* waited : leg_works_) {
        *waited = work;
      }
      legs_.clear();
      leg_works_.clear();
    }
  }
  for (Stage& stage : stages_) {
    for (Work& work : stage.sending_activation) {
      std::exchange(work, Work()).wait(stream_);
    }
    for (Work& work : stage.sending_gradient) {
      std::exchange(work, Work()).wait(stream_);
    }
  }
  sum_losses(program);
}

// The set that the run before the last one used: the device has long copied it, unless it is far behind the host.
void Executor::begin_host_batches() {
  if (!reads_batches()) {
    return;
  }
  host_set_ = 1 - host_set_;
  HostBatches& set = host_batches_[host_set_];
  wait_reached(*set.taken, stream_, rank_.recorder, "the micro-batches of the step before the last one");
  *set.num_targets.as<double>() = 0;
}

void Executor::sum_losses(const Program& program) {
  const bool is_last = stages_.back().chunk->is_last();
  if (is_last) {
    kernels::sum_in_order(totals_.slice(0, 1), loss_sums_.slice(0, program.num_microbatches), stream_);
    stream_.copy(totals_.slice(1, 2).data, host_batches_[host_set_].num_targets.data, sizeof(double));
  } else {
    stream_.fill_zero(totals_.data, totals_.bytes());
  }
  if (reads_batches()) {
    stream_.record(*host_batches_[host_set_].taken);
  }
}

void Executor::perform(const Action& action, const BatchReader& reader) {
  Stage& stage = stage_of(action.stage);
  switch (action.kind) {
    case ActionKind::kForward:
      forward(stage, action.microbatch, reader);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      backward(stage, action);
      break;
    case ActionKind::kReduceGrads:
      sync_.reduce_grads(action.stage);
      break;
    default:
      throw Error(ErrorCode::kInternal, "the executor does not know " + action_text(action));
  }
}

// Adds the transfer to the exchange that is being put together; returns where its work will be waited for.
Work& Executor::prepare_transfer(const Action& action) {
  Stage& stage = stage_of(action.stage);
  const int microbatch = action.microbatch;
  const auto slot_in = [&](SlotKind kind) {
    return static_cast<size_t>(stage.pools[static_cast<size_t>(kind)].of(microbatch));
  };
  const auto leg = [&](Transfer::Direction direction, int peer, TensorView data) {
    legs_.push_back({direction, peer, transfer_tag(action), data});
  };
  switch (action.kind) {
    case ActionKind::kSendForward: {
      const size_t slot = slot_in(SlotKind::kActivation);
      leg(Transfer::Direction::kSend, stage.next_rank, stage.chunk->output(stage.activations[slot]));
      return stage.sending_activation[slot];
    }
    case ActionKind::kRecvForward: {
      const size_t slot = slot_in(SlotKind::kActivation);
      leg(Transfer::Direction::kReceive, stage.previous_rank, stage.activations[slot].input);
      return stage.receiving_activation[slot];
    }
    case ActionKind::kSendBackward: {
      const auto turn = static_cast<size_t>(stage.turn);
      stage.turn = 1 - stage.turn;
      leg(Transfer::Direction::kSend, stage.previous_rank, stage.input_gradients[turn]);
      return stage.sending_gradient[turn];
    }
    default: {
      const size_t slot = slot_in(SlotKind::kOutputGradient);
      leg(Transfer::Direction::kReceive, stage.next_rank, stage.output_gradients[slot]);
      return stage.receiving_gradient[slot];
    }
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
  set_masks(microbatch);
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

void Executor::set_masks(int microbatch) {
  context_->masks.first_sample =
      first_sample(consumed_samples_, microbatch, grid_.data().rank(), grid_.data().size(), shape_.batch);
}

void Executor::load_batch(Stage& stage, int microbatch, MicroBatch& to, const BatchReader& reader) {
  HostBatches& set = host_batches_[host_set_];
  MicroBatch& host = set.batches[static_cast<size_t>(microbatch)];
  if (stage.chunk->is_first() || stage_index_.front() < 0) {  // where both ends are here, the first has read it
    reader(microbatch, host);
    const float* mask = host.mask.as<float>();
    *set.num_targets.as<double>() += std::accumulate(mask, mask + host.mask.num_elements(), 0.0);
  }
  const auto copy = [&](TensorView device, ConstTensorView from) {
    stream_.copy(device.data, from.data, from.bytes());
  };
  copy(to.tokens, host.tokens);
  copy(to.targets, host.targets);
  copy(to.mask, host.mask);
  if (stage.chunk->is_first()) {
    sort_tokens(host);
    copy(to.order, host.order);
  }
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
  set_masks(microbatch);
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

}  // namespace ashlar
