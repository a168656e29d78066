#include "parallel/schedule/order.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

constexpr int kNumKinds = static_cast<int>(ActionKind::kReduceGrads) + 1;
constexpr int kNowhere = -1;

size_t as_size(int value) {
  return static_cast<size_t>(value);
}

}  // namespace

ActionIndex::ActionIndex(const Schedule& schedule)
    : num_stages_(schedule.num_stages()), num_microbatches_(schedule.num_microbatches) {
  places_.resize(as_size(kNumKinds) * as_size(num_stages_) * as_size(num_microbatches_ + 1), Place{kNowhere, 0});
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& list = schedule.actions[as_size(rank)];
    for (size_t position = 0; position < list.size(); ++position) {
      has_transfers_ = has_transfers_ || is_transfer(list[position].kind);
      Place& place = places_[slot(list[position])];
      if (place.rank == kNowhere) place = {rank, position};
    }
  }
}

size_t ActionIndex::slot(const Action& action) const {
  DCHECK(action.stage >= 0 && action.stage < num_stages_ && action.microbatch >= -1 &&
             action.microbatch < num_microbatches_,
         "{} is outside of a schedule of {} stages and {} micro-batches", action_text(action), num_stages_,
         num_microbatches_);
  // Micro-batch -1 (actions without one) takes the first column.
  return (as_size(static_cast<int>(action.kind)) * as_size(num_stages_) + as_size(action.stage)) *
             as_size(num_microbatches_ + 1) +
         as_size(action.microbatch + 1);
}

std::optional<Place> ActionIndex::find(const Action& action) const {
  const Place& place = places_[slot(action)];
  if (place.rank == kNowhere) return std::nullopt;
  return place;
}

std::vector<Action> prerequisites(const Schedule& schedule, const ActionIndex& index, const Action& action,
                                  const OrderOptions& options) {
  const int stage = action.stage;
  const int microbatch = action.microbatch;
  // The action that computes the gradient of a stage's input: I where the backward is split, B otherwise.
  const auto input_grad = [&](int of_stage) {
    const Action split{ActionKind::kBackwardInput, of_stage, microbatch};
    return index.find(split) ? split : Action{ActionKind::kBackward, of_stage, microbatch};
  };
  const auto needs_transfer = [&](int peer) {
    return index.has_transfers() && schedule.stage_to_rank[as_size(peer)] != schedule.stage_to_rank[as_size(stage)];
  };
  const bool last_stage = stage == schedule.num_stages() - 1;
  switch (action.kind) {
    case ActionKind::kForward:
      if (stage == 0) return {};
      if (needs_transfer(stage - 1)) return {{ActionKind::kSendForward, stage - 1, microbatch}};
      return {{ActionKind::kForward, stage - 1, microbatch}};
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput: {
      const Action own_forward{ActionKind::kForward, stage, microbatch};
      if (last_stage) return {own_forward};
      if (needs_transfer(stage + 1)) return {own_forward, {ActionKind::kSendBackward, stage + 1, microbatch}};
      return {own_forward, input_grad(stage + 1)};
    }
    case ActionKind::kBackwardWeight:
      return {{ActionKind::kBackwardInput, stage, microbatch}};
    case ActionKind::kSendForward:
      return {{ActionKind::kForward, stage, microbatch}};
    case ActionKind::kSendBackward:
      return {input_grad(stage)};
    case ActionKind::kRecvForward:
    case ActionKind::kRecvBackward:
      if (options.receive_blocks) return {matching_send(action)};
      return {};
    case ActionKind::kReduceGrads: {
      if (microbatch < 0) return {};
      const Action split{ActionKind::kBackwardWeight, stage, microbatch};
      return {index.find(split) ? split : Action{ActionKind::kBackward, stage, microbatch}};
    }
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
      return {};
  }
  return {};
}

ExecutionOrder execution_order(const Schedule& schedule, const OrderOptions& options) {
  const ActionIndex index(schedule);
  std::vector<size_t> next(schedule.actions.size(), 0);
  const auto unfinished = [&](const Action& action) {
    for (const Action& needed : prerequisites(schedule, index, action, options)) {
      const std::optional<Place> place = index.find(needed);
      if (!place || place->position >= next[as_size(place->rank)]) return std::optional<Action>(needed);
    }
    return std::optional<Action>();
  };
  ExecutionOrder result;
  for (bool progress = true; progress;) {
    progress = false;
    for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
      const std::vector<Action>& list = schedule.actions[as_size(rank)];
      size_t& position = next[as_size(rank)];
      while (position < list.size() && !unfinished(list[position])) {
        result.order.push_back({rank, position++});
        progress = true;
      }
    }
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    const std::vector<Action>& list = schedule.actions[as_size(rank)];
    const size_t position = next[as_size(rank)];
    if (position == list.size()) continue;
    result.stuck.push_back({rank, position});
    result.stuck_waiting.push_back(unfinished(list[position]).value());
  }
  return result;
}

}  // namespace ashlar
