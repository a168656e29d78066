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

// The reductions that follow each action of a list: of its micro-batch, or of the stage's step behind the last.
std::vector<std::optional<Action>> place_reductions(const std::vector<Action>& list, int num_stages, GradReduce when) {
  std::vector<std::optional<Action>> placed(list.size());
  std::vector<bool> seen(index(num_stages), false);
  for (size_t i = list.size(); i-- > 0 && when != GradReduce::kNone;) {
    const Action& action = list[i];
    if (action.kind != ActionKind::kBackward && action.kind != ActionKind::kBackwardWeight) continue;
    if (when == GradReduce::kMicroBatch) {
      placed[i] = {ActionKind::kReduceGrads, action.stage, action.microbatch};
    } else if (!seen[index(action.stage)]) {
      placed[i] = {ActionKind::kReduceGrads, action.stage, -1};
      seen[index(action.stage)] = true;
    }
  }
  return placed;
}

bool stands_in_window(const Action& action, const LoweringOptions& options) {
  return options.shard_windows && is_compute(action.kind) &&
         (action.kind != ActionKind::kBackwardWeight || options.weight_windows);
}

void check_not_lowered(const Schedule& schedule, const LoweringOptions& options) {
  for (const std::vector<Action>& list : schedule.actions) {
    for (const Action& action : list) {
      const bool is_window = action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReshard;
      DCHECK(
          !is_transfer(action.kind) && action.kind != ActionKind::kReduceGrads && !(is_window && options.shard_windows),
          "schedule {} is lowered already", schedule.name);
    }
  }
}

}  // namespace

Schedule lower(const Schedule& schedule, const LoweringOptions& options) {
  const std::vector<std::string> problems = validate(schedule);
  REQUIRE(problems.empty(), ErrorCode::kUsage, "schedule {} is not valid: {}", schedule.name,
          fmt::join(problems, "; "));
  check_not_lowered(schedule, options);
  Schedule lowered = schedule;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& list = schedule.actions[index(rank)];
    const std::map<size_t, std::vector<Action>> receives = place_receives(schedule, rank);
    const std::vector<std::optional<Action>> reductions =
        place_reductions(list, schedule.num_stages(), options.grad_reduce);
    std::vector<Action> out;
    bool open = false;
    for (size_t i = 0; i < list.size(); ++i) {
      const int stage = list[i].stage;
      if (const auto here = receives.find(i); here != receives.end()) {
        out.insert(out.end(), here->second.begin(), here->second.end());
      }
      if (i > 0 && reductions[i - 1]) out.push_back(*reductions[i - 1]);
      const bool in_window = stands_in_window(list[i], options);
      if (in_window && !open) out.push_back({ActionKind::kUnshard, stage, -1});
      out.push_back(list[i]);
      const std::optional<Action> send = send_after(schedule, list[i]);
      open = in_window && !send && !reductions[i] && i + 1 < list.size() && list[i + 1].stage == stage &&
             stands_in_window(list[i + 1], options) && !receives.contains(i + 1);
      if (in_window && !open) out.push_back({ActionKind::kReshard, stage, -1});
      if (send) out.push_back(*send);
    }
    if (!list.empty() && reductions.back()) out.push_back(*reductions.back());
    lowered.actions[index(rank)] = std::move(out);
  }
  return lowered;
}

}  // namespace ashlar
