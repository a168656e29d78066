#include <algorithm>
#include <map>
#include <optional>

#include "parallel/schedule/schedule.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

size_t index(int value) {
  return static_cast<size_t>(value);
}

// The transfer that hands the result of a compute action to another rank, if there is one.
std::optional<Action> send_after(const Schedule& schedule, const Action& action) {
  const int stage = action.stage;
  const auto other_rank = [&](int peer) {
    return peer >= 0 && peer < schedule.num_stages() &&
           schedule.stage_to_rank[index(peer)] != schedule.stage_to_rank[index(stage)];
  };
  if (action.kind == ActionKind::kForward && other_rank(stage + 1)) {
    return Action{ActionKind::kSendForward, stage, action.microbatch};
  }
  const bool makes_input_grad = action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
  if (makes_input_grad && other_rank(stage - 1)) {
    return Action{ActionKind::kSendBackward, stage, action.microbatch};
  }
  return std::nullopt;
}

bool consumes(const Action& action, const Action& receive) {
  if (action.stage != receive.stage || action.microbatch != receive.microbatch) return false;
  if (receive.kind == ActionKind::kRecvForward) return action.kind == ActionKind::kForward;
  return action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
}

size_t consumer_position(const std::vector<Action>& list, const Action& receive) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Action& a) { return consumes(a, receive); });
  DCHECK(found != list.end(), "no action needs {}", action_text(receive));
  return static_cast<size_t>(found - list.begin());
}

// Receives of `rank`, by the position of the compute action before which they stand. From one sender they keep the
// order of its sends: a receive moves forward to where the earliest need of itself and all later ones stands.
std::map<size_t, std::vector<Action>> place_receives(const Schedule& schedule, int rank) {
  std::map<size_t, std::vector<Action>> placed;
  for (int sender = 0; sender < schedule.num_ranks(); ++sender) {
    std::vector<Action> receives;
    for (const Action& action : schedule.actions[index(sender)]) {
      const std::optional<Action> send = send_after(schedule, action);
      if (!send) continue;
      const Action receive = matching_receive(*send);
      if (schedule.stage_to_rank[index(receive.stage)] == rank) receives.push_back(receive);
    }
    std::vector<size_t> positions(receives.size());
    size_t earliest_need = schedule.actions[index(rank)].size();
    for (size_t i = receives.size(); i-- > 0;) {
      earliest_need = std::min(earliest_need, consumer_position(schedule.actions[index(rank)], receives[i]));
      positions[i] = earliest_need;
    }
    for (size_t i = 0; i < receives.size(); ++i) placed[positions[i]].push_back(receives[i]);
  }
  return placed;
}

// Position of every stage's last weight gradient on `rank`, as a set of positions.
std::vector<bool> last_weight_grads(const std::vector<Action>& list, int num_stages) {
  std::vector<bool> is_last(list.size(), false);
  std::vector<bool> seen(index(num_stages), false);
  for (size_t i = list.size(); i-- > 0;) {
    const bool weight_grad = list[i].kind == ActionKind::kBackward || list[i].kind == ActionKind::kBackwardWeight;
    if (weight_grad && !seen[index(list[i].stage)]) {
      is_last[i] = true;
      seen[index(list[i].stage)] = true;
    }
  }
  return is_last;
}

}  // namespace

Schedule lower(const Schedule& schedule, const LoweringOptions& options) {
  const std::vector<std::string> problems = validate(schedule);
  REQUIRE(problems.empty(), ErrorCode::kUsage, "schedule {} is not valid: {}", schedule.name,
          fmt::join(problems, "; "));
  Schedule lowered = schedule;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& list = schedule.actions[index(rank)];
    const std::map<size_t, std::vector<Action>> receives = place_receives(schedule, rank);
    const std::vector<bool> ends_weight_grads = last_weight_grads(list, schedule.num_stages());
    std::vector<Action> out;
    for (size_t i = 0; i < list.size(); ++i) {
      DCHECK(!is_transfer(list[i].kind) && list[i].kind != ActionKind::kReduceGrads, "schedule {} is lowered already",
             schedule.name);
      if (const auto here = receives.find(i); here != receives.end()) {
        out.insert(out.end(), here->second.begin(), here->second.end());
      }
      out.push_back(list[i]);
      if (const std::optional<Action> send = send_after(schedule, list[i])) out.push_back(*send);
      if (options.reduce_grads && ends_weight_grads[i]) {
        out.push_back({ActionKind::kReduceGrads, list[i].stage, -1});
      }
    }
    lowered.actions[index(rank)] = std::move(out);
  }
  return lowered;
}

}  // namespace ashlar
