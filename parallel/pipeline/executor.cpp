#include "parallel/pipeline/executor.h"

#include <utility>

#include "kernels/reduce.h"

namespace ashlar {
namespace {

// Both ends of a transfer compute the same tag: the stage whose boundary is crossed, the direction, the micro-batch.
int transfer_tag(const Action& action) {
  const bool forward = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvForward;
  const bool upper_end = action.kind == ActionKind::kRecvForward || action.kind == ActionKind::kSendBackward;
  const int boundary = upper_end ? action.stage : action.stage + 1;
  return ((boundary * 2 + (forward ? 1 : 0)) << 12) + (action.microbatch & 0xfff);
}

}  // namespace

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
  if (reads_batches()) {
    host_batches_.begin_run(stream_, rank_.recorder);
  }
  for (const Step& at : program.steps) {
    rank_.recorder.set_position(step, at.text.c_str(), at.action.microbatch);
    if (hooks_.before_action) {
      hooks_.before_action(at.action);
    }
    take_slots(at.slots.before);
    if (is_transfer(at.action.kind)) {
      leg_works_.push_back(&prepare_transfer(at.action));
    } else {
      perform(at, reader);
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

void Executor::sum_losses(const Program& program) {
  const bool is_last = stages_.back().chunk->is_last();
  if (is_last) {
    kernels::sum_in_order(totals_.slice(0, 1), loss_sums_.slice(0, program.num_microbatches), stream_);
    host_batches_.copy_num_targets(totals_.slice(1, 2), stream_);
  } else {
    stream_.fill_zero(totals_.data, totals_.bytes());
  }
  if (reads_batches()) {
    host_batches_.end_run(stream_);
  }
}

void Executor::perform(const Step& at, const BatchReader& reader) {
  const Action& action = at.action;
  Stage& stage = stage_of(action.stage);
  switch (action.kind) {
    case ActionKind::kForward:
      forward(stage, at, reader);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      backward(stage, at);
      break;
    case ActionKind::kReduceGrads:
      sync_.reduce_grads(action.stage, action.microbatch);
      break;
    case ActionKind::kUnshard:
      sync_.open_stage(action.stage, at.next_read);
      break;
    case ActionKind::kReshard:
      sync_.close_stage(action.stage);
      break;
    default:
      throw Error(ErrorCode::kInternal, "the executor does not know " + at.text);
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

void Executor::forward(Stage& stage, const Step& at, const BatchReader& reader) {
  StageChunk& chunk = *stage.chunk;
  const int microbatch = at.action.microbatch;
  const auto slot = static_cast<size_t>(stage.pools[static_cast<size_t>(SlotKind::kActivation)].of(microbatch));
  StageChunk::ActivationSlot& memory = stage.activations[slot];
  if (chunk.is_first() || chunk.is_last()) {
    if (chunk.is_first() || stage_index_.front() < 0) {  // where both ends are here, the first has read it
      host_batches_.read(reader, microbatch);
    }
    host_batches_.copy_to(memory.batch, microbatch, stream_);
  }
  std::exchange(stage.receiving_activation[slot], Work()).wait(stream_);
  set_masks(microbatch);
  chunk.forward({*context_, sync_, microbatch, at.next_read}, memory, hooks_.on_activation);
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

void Executor::backward(Stage& stage, const Step& at) {
  StageChunk& chunk = *stage.chunk;
  const Action& action = at.action;
  const int microbatch = action.microbatch;
  const auto slot_in = [&](Stage& of, SlotKind kind) {
    return static_cast<size_t>(of.pools[static_cast<size_t>(kind)].of(microbatch));
  };
  StageChunk::ActivationSlot& memory = stage.activations[slot_in(stage, SlotKind::kActivation)];
  StageChunk::GradientSlot& gradients =
      stage.gradients[action.kind == ActionKind::kBackward ? 0 : slot_in(stage, SlotKind::kPendingGradient)];
  set_masks(microbatch);
  const StagePass pass{*context_, sync_, microbatch, at.next_read, &hooks_.on_gradients};

  ConstTensorView doutput;
  if (!chunk.is_last()) {
    const size_t slot = slot_in(stage, SlotKind::kOutputGradient);
    std::exchange(stage.receiving_gradient[slot], Work()).wait(stream_);
    doutput = stage.output_gradients[slot];
  }
  if (action.kind == ActionKind::kBackwardWeight) {
    chunk.backward_weight(pass, memory, gradients, doutput);
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
    chunk.backward(pass, memory, gradients, dinput, doutput);
  } else {
    chunk.backward_input(pass, memory, gradients, dinput, doutput);
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
