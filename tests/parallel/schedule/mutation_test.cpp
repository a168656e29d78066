// Drop, duplicate, swap or move any action of a valid schedule: validate() catches it, or the change is harmless. What
// "harmless" means is decided by a small machine that shares no code with the validator: ranks that work off their
// lists over message queues, one per ordered pair of ranks, in which messages carry what they are.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "parallel/schedule/schedule.h"
#include "tests/parallel/schedule/queue_machine.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

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

const LoweringOptions kMicroBatchesInWindows{.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true};

bool has_kind(const Schedule& schedule, ActionKind kind) {
  return std::ranges::any_of(schedule.actions, [kind](const std::vector<Action>& list) {
    return std::ranges::any_of(list, [kind](const Action& action) { return action.kind == kind; });
  });
}

std::vector<Schedule> subjects() {
  std::vector<Schedule> result;
  for (int p = 1; p <= 4; ++p) {
    for (int m : {1, 4}) {
      result.push_back(lower(make_one_f_one_b(p, m)));
      result.push_back(lower(make_gpipe(p, m)));
    }
  }
  for (int p : {1, 2}) {
    for (int m : {1, 3}) {
      result.push_back(lower(make_one_f_one_b(p, m), kMicroBatchesInWindows));
      result.push_back(lower(make_gpipe(p, m), {.shard_windows = true}));
    }
  }
  // A loop, a V shape and split backward passes.
  result.push_back(
      lower(text_schedule({0, 1, 0, 1}, 2, {"0F0 0F1 2F0 2F1 2B0 0B0 2B1 0B1", "1F0 3F0 3B0 1F1 1B0 3F1 3B1 1B1"})));
  result.push_back(
      lower(text_schedule({0, 1, 1, 0}, 2, {"0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"})));
  result.push_back(
      lower(text_schedule({0, 1, 1, 0}, 2, {"0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"}),
            kMicroBatchesInWindows));
  result.push_back(
      lower(text_schedule({0, 1}, 3, {"0F0 0F1 0I0 0F2 0I1 0W0 0I2 0W1 0W2", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"})));
  return result;
}

TEST(Mutations, SubjectsRun) {
  for (const Schedule& schedule : subjects()) {
    const std::optional<std::string> sums = outcome(schedule);
    ASSERT_TRUE(sums.has_value());
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      std::string of_step = fmt::format("{}:", stage), of_each = of_step;
      for (int m = 0; m < schedule.num_microbatches; ++m) {
        of_step += fmt::format("w{}", m);
        of_each += fmt::format("w{0}r{0}", m);
      }
      EXPECT_TRUE(sums->find(of_step + "r ") != std::string::npos || sums->find(of_each + " ") != std::string::npos)
          << *sums;
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
        // Without its only REDUCE_GRAD a schedule is one that was lowered without reduction.
        const bool other_meaning =
            schedule.actions[rank][i].kind == ActionKind::kReduceGrads && !has_kind(mutated, ActionKind::kReduceGrads);
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
