// How long a schedule takes, from its lists alone.
#pragma once

#include <string>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace ashlar {

// In any unit of time. The defaults count a forward as 1 and a full backward as 2.
struct ActionCosts {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double send = 0;     // time the sender's rank is busy
  double receive = 0;  // time the receiver's rank is busy
  double reduce_grads = 0;
  double unshard = 0;
  double transfer = 0;  // from the end of a send (or of the compute action, when transfers are implied) to arrival
  bool receive_blocks = false;  // false: a receive is posted, and the compute action that needs it waits

  double of(ActionKind kind) const;
};

struct TimedAction {
  Action action;
  double start = 0;
  double end = 0;
};

struct Timeline {
  std::string name;
  std::vector<std::vector<TimedAction>> ranks;
  double total = 0;  // end of the last action

  double compute_time(int rank) const;
  // 1 - compute time of all ranks / (ranks * total).
  double bubble_fraction() const;
};

// Pure. Every action starts as soon as its rank is free and what it waits for has arrived. Throws Error(kUsage) when
// the schedule cannot finish; it is validate() that says why.
Timeline simulate(const Schedule& schedule, const ActionCosts& costs = {});

}  // namespace ashlar
