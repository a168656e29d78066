#include "parallel/schedule/schedule.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

// Walks the actions of one stage. `opens` and `closes` tell where a micro-batch becomes alive and where it dies (after
// the action); the answer is the largest number alive at once.
template <typename Opens, typename Closes>
int largest_alive(const Schedule& schedule, int stage, Opens opens, Closes closes) {
  DCHECK(stage >= 0 && stage < schedule.num_stages(), "stage {} of {}", stage, schedule.num_stages());
  std::vector<bool> alive(static_cast<size_t>(schedule.num_microbatches), false);
  int num_alive = 0;
  int largest = 0;
  for (const Action& action :
       schedule.actions.at(static_cast<size_t>(schedule.stage_to_rank[static_cast<size_t>(stage)]))) {
    if (action.stage != stage || !has_microbatch(action.kind)) continue;
    std::vector<bool>::reference slot = alive.at(static_cast<size_t>(action.microbatch));
    if (opens(action) && !slot) {
      slot = true;
      largest = std::max(largest, ++num_alive);
    }
    if (closes(action) && slot) {
      slot = false;
      --num_alive;
    }
  }
  return largest;
}

bool has_kind(const Schedule& schedule, int stage, ActionKind kind) {
  const size_t rank = static_cast<size_t>(schedule.stage_to_rank.at(static_cast<size_t>(stage)));
  return std::any_of(schedule.actions.at(rank).begin(), schedule.actions.at(rank).end(),
                     [&](const Action& action) { return action.stage == stage && action.kind == kind; });
}

}  // namespace

int max_live_microbatches(const Schedule& schedule, int stage) {
  const bool forward_only =
      !has_kind(schedule, stage, ActionKind::kBackward) && !has_kind(schedule, stage, ActionKind::kBackwardWeight);
  return largest_alive(
      schedule, stage,
      [](const Action& a) { return a.kind == ActionKind::kRecvForward || a.kind == ActionKind::kForward; },
      [forward_only](const Action& a) {
        if (forward_only) return a.kind == ActionKind::kForward;
        return a.kind == ActionKind::kBackward || a.kind == ActionKind::kBackwardWeight;
      });
}

int max_pending_weight_grads(const Schedule& schedule, int stage) {
  return largest_alive(
      schedule, stage, [](const Action& a) { return a.kind == ActionKind::kBackwardInput; },
      [](const Action& a) { return a.kind == ActionKind::kBackwardWeight; });
}

Schedule merge_backward(const Schedule& schedule) {
  Schedule merged = schedule;
  for (std::vector<Action>& list : merged.actions) {
    std::vector<Action> out;
    for (const Action& action : list) {
      const bool joins = action.kind == ActionKind::kBackwardWeight && !out.empty() &&
                         out.back() == Action{ActionKind::kBackwardInput, action.stage, action.microbatch};
      if (joins) {
        out.back().kind = ActionKind::kBackward;
      } else {
        out.push_back(action);
      }
    }
    list = std::move(out);
  }
  return merged;
}

}  // namespace ashlar
