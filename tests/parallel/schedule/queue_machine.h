// A small machine that runs a lowered schedule and shares no code with the validator or the simulator: ranks work off
// their lists over message queues, one per ordered pair of ranks, in which messages carry what they are.
#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace ashlar {

class QueueMachine {
 public:
  explicit QueueMachine(const Schedule& schedule) : schedule_(schedule) {
    for (const std::vector<Action>& list : schedule.actions) {
      for (const Action& action : list) {
        if (action.kind == ActionKind::kUnshard) in_windows_.insert(action.stage);
      }
    }
  }

  // Per stage, the order in which weight gradients (w) are added and reduced (r); nothing when a rank hangs, a value is
  // wrong or one is left over, or a stage that is whole in windows is not so when it must be.
  std::optional<std::string> run() {
    std::vector<size_t> next(schedule_.actions.size(), 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < next.size(); ++rank) {
        while (next[rank] < schedule_.actions[rank].size() &&
               step(static_cast<int>(rank), schedule_.actions[rank][next[rank]])) {
          ++next[rank];
          progress = true;
        }
        if (broken_) return std::nullopt;
      }
    }
    for (size_t rank = 0; rank < next.size(); ++rank) {
      if (next[rank] != schedule_.actions[rank].size()) return std::nullopt;
    }
    if (!whole_.empty() || !outputs_.empty() || !input_grads_.empty() || !unfinished_.empty()) return std::nullopt;
    for (const auto& [pair, queue] : channels_) {
      if (queue.sent.size() != queue.num_posted) return std::nullopt;
    }
    std::string text;
    for (const auto& [stage, sum] : sums_) text += fmt::format("{}:{} ", stage, sum);
    return text;
  }

 private:
  struct Channel {
    std::vector<std::string> sent;
    size_t num_posted = 0;
  };
  using Key = std::pair<int, int>;  // stage, micro-batch

  // False: cannot run yet.
  bool step(int rank, const Action& a) {
    if (schedule_.stage_to_rank[static_cast<size_t>(a.stage)] != rank) return fail();
    const Key key{a.stage, a.microbatch};
    const int num_stages = schedule_.num_stages();
    const bool reads =
        a.kind == ActionKind::kForward || a.kind == ActionKind::kBackward || a.kind == ActionKind::kBackwardInput;
    if (reads && in_windows_.contains(a.stage) && !whole_.contains({rank, a.stage})) return fail();
    switch (a.kind) {
      case ActionKind::kRecvForward:
        return post(a.stage - 1, a, "F");
      case ActionKind::kRecvBackward:
        return post(a.stage + 1, a, "B");
      case ActionKind::kSendForward:
        return send(a.stage + 1, a, outputs_, "F");
      case ActionKind::kSendBackward:
        return send(a.stage - 1, a, input_grads_, "B");
      case ActionKind::kForward:
        if (unfinished_.count(key) != 0) return fail();
        if (a.stage > 0 && !take(a.stage - 1, a, outputs_, "F")) return broken_;
        if (a.stage < num_stages - 1) outputs_.insert(key);
        unfinished_[key] = 'F';
        return true;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        if (unfinished_.count(key) == 0 || unfinished_[key] != 'F') return fail();
        if (a.stage < num_stages - 1 && !take(a.stage + 1, a, input_grads_, "B")) return broken_;
        if (a.stage > 0) input_grads_.insert(key);
        unfinished_[key] = 'I';
        return a.kind == ActionKind::kBackwardInput || weight_grad(key);
      case ActionKind::kBackwardWeight:
        return weight_grad(key);
      case ActionKind::kReduceGrads:
        sums_[a.stage] += a.microbatch < 0 ? "r" : fmt::format("r{}", a.microbatch);
        return true;
      case ActionKind::kUnshard:
        for (const auto& [other_rank, stage] : whole_) broken_ = broken_ || other_rank == rank;
        whole_.insert({rank, a.stage});
        return !broken_;
      case ActionKind::kReshard:
        return whole_.erase({rank, a.stage}) == 1 || fail();
    }
    return fail();
  }

  bool weight_grad(const Key& key) {
    if (unfinished_.count(key) == 0 || unfinished_[key] != 'I') return fail();
    unfinished_.erase(key);
    sums_[key.first] += fmt::format("w{}", key.second);
    return true;
  }

  Channel& channel(int from_stage, int to_stage) {
    return channels_[{schedule_.stage_to_rank[static_cast<size_t>(from_stage)],
                      schedule_.stage_to_rank[static_cast<size_t>(to_stage)]}];
  }
  bool same_rank(int a, int b) const {
    return schedule_.stage_to_rank[static_cast<size_t>(a)] == schedule_.stage_to_rank[static_cast<size_t>(b)];
  }
  bool exists(int stage) const { return stage >= 0 && stage < schedule_.num_stages(); }

  bool post(int from, const Action& a, const char* what) {
    if (!exists(from) || same_rank(from, a.stage)) return fail();
    const std::string buffer = fmt::format("{}{}.{}", what, a.stage, a.microbatch);
    if (tickets_.count(buffer) != 0) return fail();
    tickets_[buffer] = channel(from, a.stage).num_posted++;
    return true;
  }

  bool send(int to, const Action& a, std::set<Key>& made, const char* what) {
    if (!exists(to) || same_rank(to, a.stage)) return fail();
    if (made.erase({a.stage, a.microbatch}) == 0) return fail();
    channel(a.stage, to).sent.push_back(fmt::format("{}{}.{}", what, to, a.microbatch));
    return true;
  }

  // The operand of a compute action: a neighbour's result on this rank, or what the posted receive brought.
  bool take(int from, const Action& a, std::set<Key>& made, const char* what) {
    if (same_rank(from, a.stage)) return made.erase({from, a.microbatch}) != 0;  // not there yet: wait
    const std::string buffer = fmt::format("{}{}.{}", what, a.stage, a.microbatch);
    const auto ticket = tickets_.find(buffer);
    if (ticket == tickets_.end()) return fail();  // nothing was posted: the executor would compute on garbage
    const Channel& in = channel(from, a.stage);
    if (ticket->second >= in.sent.size()) return false;
    if (in.sent[ticket->second] != buffer) return fail();
    tickets_.erase(ticket);
    return true;
  }

  bool fail() {
    broken_ = true;
    return false;
  }

  const Schedule& schedule_;
  std::map<std::pair<int, int>, Channel> channels_;
  std::map<std::string, size_t> tickets_;  // receive buffer -> number of the message it waits for
  std::set<Key> outputs_, input_grads_;    // results that nobody has taken yet
  std::map<Key, char> unfinished_;
  std::map<int, std::string> sums_;
  std::set<int> in_windows_;  // stages that have windows
  std::set<Key> whole_;       // rank, stage of an open window
  bool broken_ = false;
};

// Per stage, the order in which weight gradients are added and reduced; nothing when the schedule does not run.
inline std::optional<std::string> outcome(const Schedule& schedule) {
  return QueueMachine(schedule).run();
}

}  // namespace ashlar
