// Which micro-batch holds which slot. The planner walks a list of actions with these rules to learn how many slots it
// needs; the executor walks it with the same rules to use them.
#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace ashlar {

// Slots of one kind for one stage: the lowest free one is taken, so a list always uses the same slots.
class SlotPool {
 public:
  SlotPool() = default;
  SlotPool(int num_microbatches, int capacity);

  int take(int microbatch);      // Throws kInternal when none is free.
  int of(int microbatch) const;  // Throws kInternal when the micro-batch holds none.
  bool holds(int microbatch) const { return slot_of_[static_cast<size_t>(microbatch)] >= 0; }
  void release(int microbatch);
  int most_used() const { return most_used_; }
  void reset();

 private:
  std::vector<int> slot_of_;  // by micro-batch, -1 = none
  std::vector<bool> taken_;   // by slot
  int num_used_ = 0;
  int most_used_ = 0;
};

// What one stage's list does to the slots, per action; `on_this_rank` tells which neighbours hand over in memory.
enum class SlotKind { kActivation, kOutputGradient, kPendingGradient };
struct SlotEvent {
  SlotKind kind;
  int stage;
  int microbatch;
};

// Slots that an action takes before it runs and gives back behind it. Pure.
struct SlotEvents {
  std::vector<SlotEvent> before;
  std::vector<SlotEvent> after;
};
// `forward_only`: an activation slot is given back behind the forward pass, or behind its send.
SlotEvents slot_events(const Schedule& schedule, const Action& action, bool forward_only);

// Slots that a rank's list needs of each kind for a stage. Pure.
struct SlotCounts {
  int activations = 0;
  int output_gradients = 0;
  int pending_gradients = 0;  // 0 when backward is never split
};
SlotCounts count_slots(const Schedule& schedule, int stage, bool forward_only);

}  // namespace ashlar
