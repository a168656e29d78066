#include <algorithm>
#include <map>

#include "parallel/schedule/validator.h"

namespace ashlar {
namespace {

size_t as_size(int value) {
  return static_cast<size_t>(value);
}

}  // namespace

void Validator::check_transfers(const ActionIndex& index) {
  for_each_action([&](Place place, const Action& action) {
    if (is_transfer(action.kind)) {
      check_transfer_ends(index, place, action);
    } else if (is_compute(action.kind)) {
      check_handover(index, place, action);
    }
  });
}

// A transfer has another end, on another rank, and stands on the right side of its compute action.
void Validator::check_transfer_ends(const ActionIndex& index, Place place, const Action& action) {
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
void Validator::check_handover(const ActionIndex& index, Place place, const Action& action) {
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
void Validator::check_pair_order() {
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

// All stages alike: no REDUCE_GRAD, one of the step each, or one of each micro-batch.
void Validator::check_reduce_grads(const ActionIndex& index) {
  std::optional<Place> of_step, of_microbatch;  // the first of each
  for_each_action([&](Place place, const Action& action) {
    if (action.kind != ActionKind::kReduceGrads) return;
    std::optional<Place>& first = action.microbatch < 0 ? of_step : of_microbatch;
    if (!first) first = place;
  });
  if (of_step && of_microbatch) {
    problem("{} is of a whole step and {} of one micro-batch: a schedule has one kind", where(*of_step),
            where(*of_microbatch));
    return;
  }
  for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
    const int last = schedule_.num_microbatches - 1;
    if (of_step) check_reduction(index, {ActionKind::kReduceGrads, stage, -1}, last);
    for (int m = 0; of_microbatch && m <= last; ++m) check_reduction(index, {ActionKind::kReduceGrads, stage, m}, m);
  }
}

std::optional<Place> Validator::weight_grad(const ActionIndex& index, int stage, int microbatch) const {
  const std::optional<Place> split = index.find({ActionKind::kBackwardWeight, stage, microbatch});
  return split ? split : index.find({ActionKind::kBackward, stage, microbatch});
}

// A reduction stands behind the weight gradient of `microbatch` and before the stage's next.
void Validator::check_reduction(const ActionIndex& index, const Action& reduce, int microbatch) {
  const std::optional<Place> place = index.find(reduce);
  const std::optional<Place> reduced = weight_grad(index, reduce.stage, microbatch);
  const std::optional<Place> next =
      microbatch + 1 < schedule_.num_microbatches ? weight_grad(index, reduce.stage, microbatch + 1) : std::nullopt;
  if (!place) {
    problem("rank {}: {} is missing", schedule_.stage_to_rank[as_size(reduce.stage)], action_text(reduce));
  } else if (!reduced) {
    problem("{}: stage {} has no weight gradients of micro-batch {}", where(*place), reduce.stage, microbatch);
  } else if (place->position < reduced->position) {
    problem("{} stands before {}, the {}weight gradient that it reduces", where(*place), where(*reduced),
            reduce.microbatch < 0 ? "last " : "");
  } else if (next && place->position > next->position) {
    problem("{} stands after {}, the stage's next weight gradient", where(*place), where(*next));
  }
}

// Where a stage has UNSHARD or RESHARD, the two alternate, and F, B and I stand inside; W may. Memory is for one
// window at a time.
void Validator::check_windows() {
  std::vector<bool> has_windows(as_size(schedule_.num_stages()), false);
  for_each_action([&](Place, const Action& action) {
    if (action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReshard) {
      has_windows[as_size(action.stage)] = true;
    }
  });
  std::vector<std::optional<int>> open(as_size(schedule_.num_ranks()));  // by rank: the stage of its open window
  for_each_action([&](Place place, const Action& action) {
    std::optional<int>& here = open[as_size(place.rank)];
    if (action.kind == ActionKind::kUnshard) {
      if (here) problem("{}: stage {} is whole already", where(place), *here);
      here = action.stage;
    } else if (action.kind == ActionKind::kReshard) {
      if (here != action.stage) problem("{}: stage {} is not whole here", where(place), action.stage);
      here.reset();
    } else if (is_compute(action.kind) && action.kind != ActionKind::kBackwardWeight &&
               has_windows[as_size(action.stage)] && here != action.stage) {
      problem("{}: stage {} is not whole here", where(place), action.stage);
    }
  });
  for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
    if (open[as_size(rank)]) {
      problem("rank {}: {} is missing at the end", rank, action_text({ActionKind::kReshard, *open[as_size(rank)], -1}));
    }
  }
}

}  // namespace ashlar
