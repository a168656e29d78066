#include "parallel/schedule/simulate.h"

#include <algorithm>

#include "parallel/schedule/order.h"
#include "runtime/base/error.h"

namespace ashlar {

double ActionCosts::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::kForward:
      return forward;
    case ActionKind::kBackward:
      return backward;
    case ActionKind::kBackwardInput:
      return backward_input;
    case ActionKind::kBackwardWeight:
      return backward_weight;
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return send;
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
      return receive;
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
      return unshard;
    case ActionKind::kReduceGrads:
      return reduce_grads;
  }
  return 0;
}

double Timeline::compute_time(int rank) const {
  double sum = 0;
  for (const TimedAction& timed : ranks.at(static_cast<size_t>(rank))) {
    if (is_compute(timed.action.kind)) sum += timed.end - timed.start;
  }
  return sum;
}

double Timeline::bubble_fraction() const {
  if (total <= 0) return 0;
  double compute = 0;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) compute += compute_time(rank);
  return 1 - compute / (static_cast<double>(ranks.size()) * total);
}

Timeline simulate(const Schedule& schedule, const ActionCosts& costs) {
  const OrderOptions options{.receive_blocks = costs.receive_blocks};
  const ExecutionOrder order = execution_order(schedule, options);
  REQUIRE(order.stuck.empty(), ErrorCode::kUsage, "schedule {} cannot finish: rank {} waits at position {} for {}",
          schedule.name, order.stuck.front().rank, order.stuck.front().position,
          action_text(order.stuck_waiting.front()));
  const ActionIndex index(schedule);
  Timeline timeline;
  timeline.name = schedule.name;
  timeline.ranks.resize(schedule.actions.size());
  for (const Place& place : order.order) {
    const size_t rank = static_cast<size_t>(place.rank);
    const Action& action = schedule.actions[rank][place.position];
    const double rank_free = timeline.ranks[rank].empty() ? 0.0 : timeline.ranks[rank].back().end;
    double arrival = 0;
    for (const Action& needed : prerequisites(schedule, index, action, options)) {
      const Place source = index.find(needed).value();
      const bool travels = is_send(needed.kind) || source.rank != place.rank;
      const double end = timeline.ranks[static_cast<size_t>(source.rank)][source.position].end;
      arrival = std::max(arrival, end + (travels ? costs.transfer : 0.0));
    }
    TimedAction timed{action, 0, 0};
    if (is_receive(action.kind)) {
      // A blocking receive occupies its rank while it waits, so it begins before its message is there.
      timed.start = rank_free;
      timed.end = std::max(rank_free + costs.of(action.kind), arrival);
    } else {
      timed.start = std::max(rank_free, arrival);
      timed.end = timed.start + costs.of(action.kind);
    }
    timeline.ranks[rank].push_back(timed);
    timeline.total = std::max(timeline.total, timed.end);
  }
  return timeline;
}

}  // namespace ashlar
