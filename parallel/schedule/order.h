// What has to be finished before an action can start, and one order in which a whole schedule can run. Validator and
// simulator both stand on it, so "valid" and "the simulator reaches the end" are the same statement.
#pragma once

#include <optional>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace ashlar {

struct Place {
  int rank = 0;
  size_t position = 0;

  bool operator==(const Place&) const = default;
};

// Where every action of a schedule stands. Expects stages and micro-batches within range; of duplicates the first
// counts.
class ActionIndex {
 public:
  explicit ActionIndex(const Schedule& schedule);

  std::optional<Place> find(const Action& action) const;
  // True when transfers are explicit; in a compute-only schedule stages on different ranks wait for each other
  // directly.
  bool has_transfers() const { return has_transfers_; }

 private:
  size_t slot(const Action& action) const;

  int num_stages_;
  int num_microbatches_;
  bool has_transfers_ = false;
  std::vector<Place> places_;  // position kNowhere where the action does not occur
};

struct OrderOptions {
  // False: a receive is posted and only the compute action that needs it waits. True: a receive holds its rank.
  bool receive_blocks = false;
};

// Pure. The actions, on any rank, that must be finished before this one starts, besides those before it in its own
// list: for compute the stage before it (its SEND where transfers are explicit), for W its I, for a transfer its
// source, for a micro-batch's REDUCE_GRAD its weight gradient. An action that does not occur in the schedule is
// returned too; nothing can satisfy it.
std::vector<Action> prerequisites(const Schedule& schedule, const ActionIndex& index, const Action& action,
                                  const OrderOptions& options = {});

struct ExecutionOrder {
  std::vector<Place> order;           // every action that can run, after all that it waits for
  std::vector<Place> stuck;           // the first action of each rank that cannot run; empty = no deadlock
  std::vector<Action> stuck_waiting;  // and one unfinished prerequisite of each
};

// Pure. Runs every rank's list in order, as far as it goes.
ExecutionOrder execution_order(const Schedule& schedule, const OrderOptions& options = {});

}  // namespace ashlar
