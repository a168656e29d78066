#include <algorithm>
#include <array>

#include "parallel/schedule/validator.h"

namespace ashlar {
namespace {

size_t as_size(int value) {
  return static_cast<size_t>(value);
}

}  // namespace

std::vector<std::string> Validator::run() {
  check_ranges();
  if (!problems_.empty()) return problems_;  // the checks below index by stage, rank and micro-batch
  check_placement_and_duplicates();
  if (!problems_.empty()) return problems_;  // and these ask where the one copy of an action is
  const ActionIndex index(schedule_);
  check_compute(index);
  check_microbatch_order();
  if (index.has_transfers()) check_transfers(index);
  check_pair_order();
  check_reduce_grads(index);
  check_windows();
  if (problems_.empty()) check_deadlock();
  return problems_;
}

std::string Validator::where(Place place) const {
  return fmt::format("rank {} position {} ({})", place.rank, place.position,
                     action_text(schedule_.actions[as_size(place.rank)][place.position]));
}

void Validator::check_ranges() {
  if (schedule_.num_microbatches < 1) problem("the schedule has {} micro-batches", schedule_.num_microbatches);
  if (schedule_.num_stages() < 1) problem("the schedule has no stages");
  if (schedule_.num_ranks() < 1) problem("the schedule has no ranks");
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    const int rank = schedule_.stage_to_rank[as_size(stage)];
    if (rank < 0 || rank >= schedule_.num_ranks()) {
      problem("stage {} is given to rank {}, but there are {} ranks", stage, rank, schedule_.num_ranks());
    }
  }
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
    const std::vector<int>& owners = schedule_.stage_to_rank;
    if (std::find(owners.begin(), owners.end(), rank) == owners.end()) problem("rank {} has no stage", rank);
  }
  for_each_action([&](Place place, const Action& action) {
    if (action.stage < 0 || action.stage >= schedule_.num_stages()) {
      problem("{}: there are {} stages", where(place), schedule_.num_stages());
    }
    if (has_microbatch(action.kind)) {
      if (action.microbatch < 0 || action.microbatch >= schedule_.num_microbatches) {
        problem("{}: there are {} micro-batches", where(place), schedule_.num_microbatches);
      }
    } else if (action.kind == ActionKind::kReduceGrads) {
      if (action.microbatch < -1 || action.microbatch >= schedule_.num_microbatches) {
        problem("{}: there are {} micro-batches", where(place), schedule_.num_microbatches);
      }
    } else if (action.microbatch != -1) {
      problem("{}: this action belongs to no micro-batch, but carries {}", where(place), action.microbatch);
    }
  });
}

void Validator::check_placement_and_duplicates() {
  const ActionIndex index(schedule_);
  for_each_action([&](Place place, const Action& action) {
    const int owner = schedule_.stage_to_rank[as_size(action.stage)];
    if (owner != place.rank) problem("{}: stage {} is on rank {}", where(place), action.stage, owner);
    const bool may_repeat = action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReshard;
    const Place first = index.find(action).value();
    if (!may_repeat && !(first == place)) problem("{}: a duplicate of {}", where(place), where(first));
  });
}

// Each stage and micro-batch: one F, and one B or one I and one W, unless the whole schedule runs forward only.
void Validator::check_compute(const ActionIndex& index) {
  bool any_backward = false;
  for_each_action([&](Place, const Action& action) {
    any_backward = any_backward || (is_compute(action.kind) && action.kind != ActionKind::kForward);
  });
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    const int rank = schedule_.stage_to_rank[as_size(stage)];
    for (int m = 0; m < schedule_.num_microbatches; ++m) {
      const Action forward{ActionKind::kForward, stage, m};
      const Action backward{ActionKind::kBackward, stage, m};
      const Action input{ActionKind::kBackwardInput, stage, m};
      const Action weight{ActionKind::kBackwardWeight, stage, m};
      if (!index.find(forward)) problem("rank {}: {} is missing", rank, action_text(forward));
      if (!any_backward) continue;
      if (index.find(backward) && (index.find(input) || index.find(weight))) {
        problem("{}: the same micro-batch has {} too", where(*index.find(backward)),
                action_text(index.find(input) ? input : weight));
      } else if (!index.find(backward) && !index.find(input) && !index.find(weight)) {
        problem("rank {}: {} (or {} and {}) is missing", rank, action_text(backward), action_text(input),
                action_text(weight));
      } else if (!index.find(backward) && !index.find(input)) {
        problem("rank {}: {} is missing", rank, action_text(input));
      } else if (!index.find(backward) && !index.find(weight)) {
        problem("rank {}: {} is missing", rank, action_text(weight));
      }
      check_before(index, forward, backward);
      check_before(index, forward, input);
      check_before(index, input, weight);
    }
  }
}

// Both on one rank; says nothing when one of them is missing.
void Validator::check_before(const ActionIndex& index, const Action& first, const Action& second) {
  const std::optional<Place> a = index.find(first);
  const std::optional<Place> b = index.find(second);
  if (a && b && b->position < a->position) problem("{} stands before {}", where(*b), where(*a));
}

// Losses, input gradients and weight gradients of a stage are added up in ascending micro-batch order, so that every
// schedule gives the same bits.
void Validator::check_microbatch_order() {
  struct Sum {
    const char* what;
    std::vector<ActionKind> kinds;
  };
  static const std::array<Sum, 3> kSums = {
      Sum{"forward", {ActionKind::kForward}},
      Sum{"input gradients", {ActionKind::kBackward, ActionKind::kBackwardInput}},
      Sum{"weight gradients", {ActionKind::kBackward, ActionKind::kBackwardWeight}}};
  for (const Sum& sum : kSums) {
    std::vector<std::optional<Place>> last(as_size(schedule_.num_stages()));
    for_each_action([&](Place place, const Action& action) {
      if (std::find(sum.kinds.begin(), sum.kinds.end(), action.kind) == sum.kinds.end()) return;
      std::optional<Place>& before = last[as_size(action.stage)];
      if (before && schedule_.actions[as_size(before->rank)][before->position].microbatch > action.microbatch) {
        problem("{} stands after {}: {} must come in ascending micro-batch order", where(place), where(*before),
                sum.what);
      }
      before = place;
    });
  }
}

void Validator::check_deadlock() {
  const ExecutionOrder order = execution_order(schedule_);
  for (size_t i = 0; i < order.stuck.size(); ++i) {
    problem("deadlock: {} waits forever for {} of rank {}", where(order.stuck[i]), action_text(order.stuck_waiting[i]),
            schedule_.stage_to_rank[as_size(order.stuck_waiting[i].stage)]);
  }
}

std::vector<std::string> validate(const Schedule& schedule) {
  return Validator(schedule).run();
}

}  // namespace ashlar
