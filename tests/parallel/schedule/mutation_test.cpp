// Drop, duplicate, swap or move any action of a valid schedule: validate() catches it, or the change is harmless. What
// "harmless" means is decided by a small machine that shares no code with the validator: ranks that work off their
// lists over message queues, one per ordered pair of ranks, in which messages carry what they are.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "parallel/schedule/schedule.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

class Machine {
 public:
  explicit Machine(const Schedule& schedule) : schedule_(schedule) {}

  // Per stage, the order in which weight gradients (w) are added and reduced (r); nothing when a rank hangs, a value is
  // wrong or one is left over.
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
    if (!outputs_.empty() || !input_grads_.empty() || !unfinished_.empty()) return std::nullopt;
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
        sums_[a.stage] += 'r';
        return true;
      default:
        return fail();
    }
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
  bool broken_ = false;
};

std::optional<std::string> outcome(const Schedule& schedule) {
  return Machine(schedule).run();
}

struct Count {
  int caught = 0;
  int harmless = 0;
};

void check(const Schedule& mutated, const std::string& expected, Count& count, const std::string& what) {
  if (!validate(mutated).empty()) {
    ++count.caught;
    return;
  }
  ++count.harmless;
  const std::optional<std::string> got = outcome(mutated);
  ASSERT_TRUE(got.has_value()) << what << " passes validate() but does not run";
  ASSERT_EQ(*got, expected) << what << " passes validate() but gives other gradients";
}

std::vector<Schedule> subjects() {
  std::vector<Schedule> result;
  for (int p = 1; p <= 4; ++p) {
    for (int m : {1, 2, 3, 5}) {
      result.push_back(lower(make_one_f_one_b(p, m)));
      result.push_back(lower(make_gpipe(p, m)));
    }
  }
  // A loop, a V shape and split backward passes.
  result.push_back(
      lower(text_schedule({0, 1, 0, 1}, 2, {"0F0 0F1 2F0 2F1 2B0 0B0 2B1 0B1", "1F0 3F0 3B0 1F1 1B0 3F1 3B1 1B1"})));
  result.push_back(
      lower(text_schedule({0, 1, 1, 0}, 2, {"0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"})));
  result.push_back(
      lower(text_schedule({0, 1}, 3, {"0F0 0F1 0I0 0F2 0I1 0W0 0I2 0W1 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"})));
  return result;
}

TEST(Mutations, SubjectsRun) {
  for (const Schedule& schedule : subjects()) {
    const std::optional<std::string> sums = outcome(schedule);
    ASSERT_TRUE(sums.has_value());
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      std::string expected = fmt::format("{}:", stage);
      for (int m = 0; m < schedule.num_microbatches; ++m) expected += fmt::format("w{}", m);
      EXPECT_NE(sums->find(fmt::format("{}r ", expected)), std::string::npos) << *sums;
    }
  }
}

TEST(Mutations, EveryDropIsCaught) {
  for (const Schedule& schedule : subjects()) {
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
        Schedule mutated = schedule;
        std::vector<Action>& list = mutated.actions[rank];
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
        // Without its only REDUCE_GRAD a one-stage schedule is one that was lowered without reduction.
        const bool other_meaning =
            schedule.num_stages() == 1 && schedule.actions[rank][i].kind == ActionKind::kReduceGrads;
        EXPECT_EQ(validate(mutated).empty(), other_meaning)
            << schedule.name << " without " << action_text(schedule.actions[rank][i]);
      }
    }
  }
}

TEST(Mutations, EveryDuplicateIsCaught) {
  for (const Schedule& schedule : subjects()) {
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      const size_t size = schedule.actions[rank].size();
      for (size_t i = 0; i < size; ++i) {
        for (size_t at : {size_t{0}, i, size}) {
          Schedule mutated = schedule;
          std::vector<Action>& list = mutated.actions[rank];
          list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), schedule.actions[rank][i]);
          EXPECT_FALSE(validate(mutated).empty());
        }
      }
    }
  }
}

TEST(Mutations, EverySwapIsCaughtOrHarmless) {
  Count count;
  for (const Schedule& schedule : subjects()) {
    const std::string expected = outcome(schedule).value();
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
        for (size_t j = i + 1; j < schedule.actions[rank].size(); ++j) {
          Schedule mutated = schedule;
          std::swap(mutated.actions[rank][i], mutated.actions[rank][j]);
          check(mutated, expected, count,
                fmt::format("{} rank {} with {} and {} swapped", schedule.name, rank,
                            action_text(schedule.actions[rank][i]), action_text(schedule.actions[rank][j])));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(count.caught, 1000);
  EXPECT_GT(count.harmless, 10);  // a send may stand later, a receive earlier
}

TEST(Mutations, EveryMoveIsCaughtOrHarmless) {
  Count count;
  for (const Schedule& schedule : subjects()) {
    const std::string expected = outcome(schedule).value();
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
        for (size_t j = 0; j < schedule.actions[rank].size(); ++j) {
          Schedule mutated = schedule;
          std::vector<Action>& list = mutated.actions[rank];
          const Action moved = list[i];
          list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
          list.insert(list.begin() + static_cast<std::ptrdiff_t>(j), moved);
          check(mutated, expected, count,
                fmt::format("{} rank {} with {} at {}", schedule.name, rank, action_text(moved), j));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(count.caught, 1000);
  EXPECT_GT(count.harmless, 10);
}

TEST(Mutations, AnActionOnAnotherRankIsCaught) {
  const Schedule schedule = lower(make_one_f_one_b(3, 3));
  for (size_t from = 0; from < 3; ++from) {
    for (size_t i = 0; i < schedule.actions[from].size(); ++i) {
      Schedule mutated = schedule;
      mutated.actions[from].erase(mutated.actions[from].begin() + static_cast<std::ptrdiff_t>(i));
      mutated.actions[(from + 1) % 3].push_back(schedule.actions[from][i]);
      EXPECT_FALSE(validate(mutated).empty());
    }
  }
}

}  // namespace
}  // namespace ashlar
