#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "parallel/schedule/order.h"
#include "parallel/schedule/schedule.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

size_t as_size(int value) {
  return static_cast<size_t>(value);
}

// Collects what is wrong. Every check walks the lists and speaks of places, so that a message can be found in the CSV.
class Validator {
 public:
  explicit Validator(const Schedule& schedule) : schedule_(schedule) {}

  std::vector<std::string> run() {
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

 private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  std::string where(Place place) const {
    return fmt::format("rank {} position {} ({})", place.rank, place.position,
                       action_text(schedule_.actions[as_size(place.rank)][place.position]));
  }

  template <typename Visit>
  void for_each_action(Visit visit) const {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      for (size_t position = 0; position < schedule_.actions[as_size(rank)].size(); ++position) {
        visit(Place{rank, position}, schedule_.actions[as_size(rank)][position]);
      }
    }
  }

  void check_ranges() {
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
      } else if (action.microbatch != -1) {
        problem("{}: this action belongs to no micro-batch, but carries {}", where(place), action.microbatch);
      }
    });
  }

  void check_placement_and_duplicates() {
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
  void check_compute(const ActionIndex& index) {
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
  void check_before(const ActionIndex& index, const Action& first, const Action& second) {
    const std::optional<Place> a = index.find(first);
    const std::optional<Place> b = index.find(second);
    if (a && b && b->position < a->position) problem("{} stands before {}", where(*b), where(*a));
  }

  // Losses, input gradients and weight gradients of a stage are added up in ascending micro-batch order, so that every
  // schedule gives the same bits.
  void check_microbatch_order() {
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

  void check_transfers(const ActionIndex& index) {
    for_each_action([&](Place place, const Action& action) {
      if (is_transfer(action.kind)) {
        check_transfer_ends(index, place, action);
      } else if (is_compute(action.kind)) {
        check_handover(index, place, action);
      }
    });
  }

  // A transfer has another end, on another rank, and stands on the right side of its compute action.
  void check_transfer_ends(const ActionIndex& index, Place place, const Action& action) {
    const bool forward = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvForward;
    const bool up = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvBackward;
    const int peer = up ? action.stage + 1 : action.stage - 1;
    if (peer < 0 || peer >= schedule_.num_stages()) {
      problem("{}: there is no stage {} at the other end", where(place), peer);
      return;
    }
    const int peer_rank = schedule_.stage_to_rank[as_size(peer)];
    if (peer_rank == place.rank) {
      problem("{}: stage {} is on the same rank, which needs no transfer", where(place), peer);
      return;
    }
    const Action other = is_send(action.kind) ? matching_receive(action) : matching_send(action);
    if (!index.find(other)) {
      problem("{}: rank {} has no {} to match it", where(place), peer_rank, action_text(other));
    }
    const std::vector<ActionKind> kinds =
        forward ? std::vector{ActionKind::kForward} : std::vector{ActionKind::kBackward, ActionKind::kBackwardInput};
    for (ActionKind kind : kinds) {
      const std::optional<Place> compute = index.find({kind, action.stage, action.microbatch});
      if (!compute) continue;
      if (is_send(action.kind) && place.position < compute->position) {
        problem("{} stands before {}, which makes what it sends", where(place), where(*compute));
      }
      if (is_receive(action.kind) && place.position > compute->position) {
        problem("{} stands after {}, which needs what it receives", where(place), where(*compute));
      }
    }
  }

  // Compute whose neighbour stage is on another rank has its receive and its send.
  void check_handover(const ActionIndex& index, Place place, const Action& action) {
    if (action.kind == ActionKind::kBackwardWeight) return;
    const bool forward = action.kind == ActionKind::kForward;
    const auto require_transfer = [&](int peer, ActionKind kind) {
      if (peer < 0 || peer >= schedule_.num_stages()) return;
      if (schedule_.stage_to_rank[as_size(peer)] == place.rank) return;
      const Action transfer{kind, action.stage, action.microbatch};
      if (!index.find(transfer)) problem("{}: {} is missing", where(place), action_text(transfer));
    };
    require_transfer(forward ? action.stage - 1 : action.stage + 1,
                     forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward);
    require_transfer(forward ? action.stage + 1 : action.stage - 1,
                     forward ? ActionKind::kSendForward : ActionKind::kSendBackward);
  }

  // For every ordered pair of ranks: the n-th receive is the other end of the n-th send. Messages between two ranks
  // carry no names, so any other order would hand over the wrong tensor.
  void check_pair_order() {
    std::map<std::pair<int, int>, std::vector<Place>> sends, receives;  // key: sending rank, receiving rank
    for_each_action([&](Place place, const Action& action) {
      if (!is_transfer(action.kind)) return;
      const bool up = action.kind == ActionKind::kSendForward || action.kind == ActionKind::kRecvBackward;
      const int peer = up ? action.stage + 1 : action.stage - 1;
      if (peer < 0 || peer >= schedule_.num_stages()) return;  // reported by check_transfer_ends
      const int peer_rank = schedule_.stage_to_rank[as_size(peer)];
      if (is_send(action.kind)) {
        sends[{place.rank, peer_rank}].push_back(place);
      } else {
        receives[{peer_rank, place.rank}].push_back(place);
      }
    });
    for (const auto& [pair, sent] : sends) {
      const std::vector<Place>& received = receives[pair];
      for (size_t n = 0; n < std::min(sent.size(), received.size()); ++n) {
        const Action& send = schedule_.actions[as_size(sent[n].rank)][sent[n].position];
        const Action& receive = schedule_.actions[as_size(received[n].rank)][received[n].position];
        if (matching_receive(send) == receive) continue;
        problem("transfer {} from rank {} to rank {}: {} meets {}", n, pair.first, pair.second, where(sent[n]),
                where(received[n]));
        break;  // what follows is shifted as well
      }
    }
  }

  void check_reduce_grads(const ActionIndex& index) {
    std::vector<std::optional<Place>> last_weight_grad(as_size(schedule_.num_stages()));
    bool any_reduce = false;
    for_each_action([&](Place place, const Action& action) {
      any_reduce = any_reduce || action.kind == ActionKind::kReduceGrads;
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) {
        last_weight_grad[as_size(action.stage)] = place;
      }
    });
    if (!any_reduce) return;
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      const Action reduce{ActionKind::kReduceGrads, stage, -1};
      const std::optional<Place> place = index.find(reduce);
      const std::optional<Place>& last = last_weight_grad[as_size(stage)];
      if (!place) {
        problem("rank {}: {} is missing", schedule_.stage_to_rank[as_size(stage)], action_text(reduce));
      } else if (!last) {
        problem("{}: stage {} has no weight gradients", where(*place), stage);
      } else if (place->position < last->position) {
        problem("{} stands before {}, the stage's last weight gradient", where(*place), where(*last));
      }
    }
  }

  // Where a stage has UNSHARD or RESHARD, the two alternate, and compute stands inside.
  void check_windows() {
    std::vector<bool> has_windows(as_size(schedule_.num_stages()), false);
    for_each_action([&](Place, const Action& action) {
      if (action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReshard) {
        has_windows[as_size(action.stage)] = true;
      }
    });
    std::vector<bool> open(as_size(schedule_.num_stages()), false);
    for_each_action([&](Place place, const Action& action) {
      const size_t stage = as_size(action.stage);
      if (!has_windows[stage]) return;
      if (action.kind == ActionKind::kUnshard) {
        if (open[stage]) problem("{}: stage {} is whole already", where(place), action.stage);
        open[stage] = true;
      } else if (action.kind == ActionKind::kReshard) {
        if (!open[stage]) problem("{}: stage {} is not whole here", where(place), action.stage);
        open[stage] = false;
      } else if (is_compute(action.kind) && !open[stage]) {
        problem("{}: stage {} is not whole here", where(place), action.stage);
      }
    });
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      if (open[as_size(stage)]) {
        problem("rank {}: {} is missing at the end", schedule_.stage_to_rank[as_size(stage)],
                action_text({ActionKind::kReshard, stage, -1}));
      }
    }
  }

  void check_deadlock() {
    const ExecutionOrder order = execution_order(schedule_);
    for (size_t i = 0; i < order.stuck.size(); ++i) {
      problem("deadlock: {} waits forever for {} of rank {}", where(order.stuck[i]),
              action_text(order.stuck_waiting[i]), schedule_.stage_to_rank[as_size(order.stuck_waiting[i].stage)]);
    }
  }

  const Schedule& schedule_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> validate(const Schedule& schedule) {
  return Validator(schedule).run();
}

}  // namespace ashlar
