#include "parallel/pipeline/slots.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ashlar {

SlotPool::SlotPool(int num_microbatches, int capacity)
    : slot_of_(static_cast<size_t>(num_microbatches), -1), taken_(static_cast<size_t>(capacity), false) {}

int SlotPool::take(int microbatch) {
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  DCHECK(free != taken_.end(), "no free slot for micro-batch {}", microbatch);
  DCHECK(!holds(microbatch), "micro-batch {} already holds a slot", microbatch);
  *free = true;
  most_used_ = std::max(most_used_, ++num_used_);
  const int slot = static_cast<int>(free - taken_.begin());
  slot_of_[static_cast<size_t>(microbatch)] = slot;
  return slot;
}

int SlotPool::of(int microbatch) const {
  DCHECK(holds(microbatch), "micro-batch {} holds no slot", microbatch);
  return slot_of_[static_cast<size_t>(microbatch)];
}

void SlotPool::release(int microbatch) {
  taken_[static_cast<size_t>(of(microbatch))] = false;
  slot_of_[static_cast<size_t>(microbatch)] = -1;
  --num_used_;
}

void SlotPool::reset() {
  std::fill(slot_of_.begin(), slot_of_.end(), -1);
  std::fill(taken_.begin(), taken_.end(), false);
  num_used_ = 0;
}

SlotEvents slot_events(const Schedule& schedule, const Action& action, bool forward_only) {
  SlotEvents events;
  const int stage = action.stage;
  const int last = schedule.num_stages() - 1;
  const auto same_rank = [&](int other) {
    return schedule.stage_to_rank[static_cast<size_t>(stage)] == schedule.stage_to_rank[static_cast<size_t>(other)];
  };
  const auto before = [&](SlotKind kind, int at) { events.before.push_back({kind, at, action.microbatch}); };
  const auto after = [&](SlotKind kind, int at) { events.after.push_back({kind, at, action.microbatch}); };

  switch (action.kind) {
    case ActionKind::kRecvForward:
      before(SlotKind::kActivation, stage);
      break;
    case ActionKind::kForward:
      if (stage == 0) {
        before(SlotKind::kActivation, stage);
      }
      if (stage < last && same_rank(stage + 1)) {
        before(SlotKind::kActivation, stage + 1);
      }
      if (forward_only && (stage == last || same_rank(stage + 1))) {
        after(SlotKind::kActivation, stage);
      }
      break;
    case ActionKind::kSendForward:
      if (forward_only) {
        after(SlotKind::kActivation, stage);
      }
      break;
    case ActionKind::kRecvBackward:
      before(SlotKind::kOutputGradient, stage);
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      if (stage > 0 && same_rank(stage - 1)) {
        before(SlotKind::kOutputGradient, stage - 1);
      }
      if (action.kind == ActionKind::kBackwardInput) {
        before(SlotKind::kPendingGradient, stage);
        break;
      }
      after(SlotKind::kActivation, stage);
      if (stage < last) {
        after(SlotKind::kOutputGradient, stage);
      }
      break;
    case ActionKind::kBackwardWeight:
      after(SlotKind::kActivation, stage);
      after(SlotKind::kPendingGradient, stage);
      if (stage < last) {
        after(SlotKind::kOutputGradient, stage);
      }
      break;
    case ActionKind::kSendBackward:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrads:
      break;
  }
  return events;
}

SlotCounts count_slots(const Schedule& schedule, int stage, bool forward_only) {
  SlotPool pools[3];
  for (SlotPool& pool : pools) {
    pool = SlotPool(schedule.num_microbatches, schedule.num_microbatches);
  }
  const auto rank = static_cast<size_t>(schedule.stage_to_rank[static_cast<size_t>(stage)]);
  for (const Action& action : schedule.actions[rank]) {
    const SlotEvents events = slot_events(schedule, action, forward_only);
    for (const SlotEvent& event : events.before) {
      if (event.stage == stage) {
        pools[static_cast<int>(event.kind)].take(event.microbatch);
      }
    }
    for (const SlotEvent& event : events.after) {
      if (event.stage == stage) {
        pools[static_cast<int>(event.kind)].release(event.microbatch);
      }
    }
  }
  return {pools[0].most_used(), pools[1].most_used(), pools[2].most_used()};
}

}  // namespace ashlar
