// Transfers as a GPU's communication stream runs them, one exchange behind the other: the executor's exchanges (all
// transfers between two other actions) must not wait for each other in a circle.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "parallel/schedule/schedule.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

// What one rank issues, in order: one compute action, or the transfers of one exchange.
using Turn = std::vector<Action>;

std::vector<Turn> turns_of(const std::vector<Action>& list) {
  std::vector<Turn> turns;
  for (const Action& action : list) {
    if (turns.empty() || !is_transfer(action.kind) || !is_transfer(turns.back().back().kind)) {
      turns.emplace_back();
    }
    turns.back().push_back(action);
  }
  return turns;
}

// Strict rendezvous: an exchange is over when for each of its legs the exchange that holds the other leg has begun; a
// rank begins a turn when all its turns before it are over. Legs of two ranks pair in their order, per direction.
// Returns the turn in which each rank that cannot finish stands.
std::vector<std::string> stuck_turns(const Schedule& schedule) {
  std::vector<std::vector<Turn>> turns;
  std::map<std::tuple<ActionKind, int, int>, std::pair<size_t, size_t>> place;  // of each transfer: rank, turn
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    turns.push_back(turns_of(schedule.actions[rank]));
    for (size_t turn = 0; turn < turns[rank].size(); ++turn) {
      for (const Action& action : turns[rank][turn]) {
        place[{action.kind, action.stage, action.microbatch}] = {rank, turn};
      }
    }
  }
  std::vector<size_t> next(turns.size(), 0);
  const auto is_over = [&](const Turn& turn) {
    for (const Action& action : turn) {
      if (is_transfer(action.kind)) {
        const Action other = is_send(action.kind) ? matching_receive(action) : matching_send(action);
        const auto [rank, at] = place.at({other.kind, other.stage, other.microbatch});
        if (at > next[rank]) {
          return false;
        }
      }
    }
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < turns.size(); ++rank) {
      if (next[rank] < turns[rank].size() && is_over(turns[rank][next[rank]])) {
        ++next[rank];
        progress = true;
      }
    }
  }
  std::vector<std::string> stuck;
  for (size_t rank = 0; rank < turns.size(); ++rank) {
    if (next[rank] < turns[rank].size()) {
      stuck.push_back(fmt::format("rank {} at {}", rank, action_text(turns[rank][next[rank]].front())));
    }
  }
  return stuck;
}

TEST(Rendezvous, NoGeneratorWaitsInACircle) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 1; microbatches <= 16; ++microbatches) {
      for (const std::string& name : schedule_names()) {
        EXPECT_THAT(stuck_turns(lower(make_schedule(name, ranks, microbatches))), testing::IsEmpty())
            << name << " on " << ranks << " ranks, " << microbatches << " micro-batches";
        const LoweringOptions all{.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true};
        EXPECT_THAT(stuck_turns(lower(make_schedule(name, ranks, microbatches), all)), testing::IsEmpty())
            << name << " with windows on " << ranks << " ranks, " << microbatches << " micro-batches";
      }
      EXPECT_THAT(stuck_turns(lower(make_forward_only(ranks, microbatches), {.grad_reduce = GradReduce::kNone})),
                  testing::IsEmpty())
          << "forward only on " << ranks << " ranks, " << microbatches << " micro-batches";
    }
  }
}

// Each transfer on its own instead of in the exchange of its turn: both ranks of a pair send before they receive.
TEST(Rendezvous, TheModelSeesACircle) {
  Schedule apart = lower(make_one_f_one_b(2, 3));
  const auto split = [](std::vector<Action>& list) {
    for (size_t at = 0; at + 1 < list.size(); ++at) {
      if (is_transfer(list[at].kind) && is_transfer(list[at + 1].kind)) {
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(at) + 1, Action{ActionKind::kReduceGrads, 0, -1});
      }
    }
  };
  split(apart.actions[0]);
  split(apart.actions[1]);
  EXPECT_THAT(stuck_turns(apart), testing::SizeIs(2));
}

}  // namespace
}  // namespace ashlar
