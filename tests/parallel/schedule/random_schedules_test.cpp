// Lowering over any placement of stages: random maps from stages to ranks, random orders that respect what waits for
// what, full and split backward mixed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "parallel/schedule/schedule.h"
#include "parallel/schedule/simulate.h"
#include "tests/parallel/schedule/queue_machine.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

using testing::ElementsAre;

// Draws actions that are ready until none is left. Every rank's list is what it drew, so the schedule can run.
Schedule random_schedule(std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Schedule schedule;
  schedule.name = "random";
  schedule.num_microbatches = pick(1, 5);
  const int num_ranks = pick(1, 4);
  const int num_stages = num_ranks + pick(0, 4);
  for (int rank = 0; rank < num_ranks; ++rank) schedule.stage_to_rank.push_back(rank);
  while (schedule.num_stages() < num_stages) schedule.stage_to_rank.push_back(pick(0, num_ranks - 1));
  std::shuffle(schedule.stage_to_rank.begin(), schedule.stage_to_rank.end(), random);
  schedule.actions.resize(static_cast<size_t>(num_ranks));

  // Micro-batches done per stage; F, input gradients and weight gradients of a stage each go in ascending order.
  std::vector<int> forward(static_cast<size_t>(num_stages), 0), input = forward, weight = forward;
  std::vector<Action> ready;
  do {
    ready.clear();
    for (int stage = 0; stage < num_stages; ++stage) {
      const size_t s = static_cast<size_t>(stage);
      const int f = forward[s], i = input[s], w = weight[s];
      if (f < schedule.num_microbatches && (stage == 0 || forward[s - 1] > f)) {
        ready.push_back({ActionKind::kForward, stage, f});
      }
      if (i < f && (stage == num_stages - 1 || input[s + 1] > i)) {
        ready.push_back({ActionKind::kBackwardInput, stage, i});
        if (w == i) ready.push_back({ActionKind::kBackward, stage, i});
      }
      if (w < i) ready.push_back({ActionKind::kBackwardWeight, stage, w});
    }
    if (ready.empty()) break;
    const Action action = ready[static_cast<size_t>(pick(0, static_cast<int>(ready.size()) - 1))];
    const size_t s = static_cast<size_t>(action.stage);
    if (action.kind == ActionKind::kForward) ++forward[s];
    if (action.kind == ActionKind::kBackwardInput || action.kind == ActionKind::kBackward) ++input[s];
    if (action.kind == ActionKind::kBackwardWeight || action.kind == ActionKind::kBackward) ++weight[s];
    schedule.actions[static_cast<size_t>(schedule.stage_to_rank[s])].push_back(action);
  } while (true);
  return schedule;
}

// The same schedule with a reduction for each micro-batch and all parameters in windows: nothing of the walk changes,
// and transfers that no action parted are not parted.
void expect_each_reduced_in_windows(const Schedule& schedule) {
  const Schedule plain = lower(schedule, {.grad_reduce = GradReduce::kNone});
  for (const bool weight_windows : {false, true}) {
    const Schedule lowered = lower(
        schedule, {.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true, .weight_windows = weight_windows});
    ASSERT_THAT(validate(lowered), ElementsAre());
    std::string expected;
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      expected += fmt::format("{}:", stage);
      for (int m = 0; m < schedule.num_microbatches; ++m) expected += fmt::format("w{0}r{0}", m);
      expected += " ";
    }
    ASSERT_EQ(outcome(lowered), expected);
    for (size_t rank = 0; rank < lowered.actions.size(); ++rank) {
      std::vector<Action> walk = lowered.actions[rank];
      for (size_t i = 1; i + 1 < walk.size(); ++i) {
        if (is_compute(walk[i].kind) || is_transfer(walk[i].kind)) continue;
        const bool behind_a_transfer = is_transfer(walk[i - 1].kind);
        size_t next = i;
        while (next < walk.size() && !is_compute(walk[next].kind) && !is_transfer(walk[next].kind)) ++next;
        ASSERT_FALSE(behind_a_transfer && next < walk.size() && is_transfer(walk[next].kind)) << action_text(walk[i]);
      }
      std::erase_if(walk, [](const Action& a) { return !is_compute(a.kind) && !is_transfer(a.kind); });
      ASSERT_EQ(walk, plain.actions[rank]);
    }
  }
}

TEST(RandomSchedules, LoweringIsValidAndRuns) {
  std::mt19937 random(20240522);
  int num_moved_receives = 0;
  for (int round = 0; round < 200; ++round) {
    const Schedule schedule = random_schedule(random);
    SCOPED_TRACE(fmt::format("round {}", round));
    ASSERT_THAT(validate(schedule), ElementsAre());
    const Schedule lowered = lower(schedule);
    ASSERT_THAT(validate(lowered), ElementsAre());
    std::string expected;
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      expected += fmt::format("{}:", stage);
      for (int m = 0; m < schedule.num_microbatches; ++m) expected += fmt::format("w{}", m);
      expected += "r ";
    }
    ASSERT_EQ(outcome(lowered), expected);
    expect_each_reduced_in_windows(schedule);
    if (HasFatalFailure()) return;
    // Posted receives and free sends add no waiting to what the compute actions ask of each other.
    ASSERT_EQ(simulate(lowered, {.transfer = 0.5}).total, simulate(schedule, {.transfer = 0.5}).total);

    for (int rank = 0; rank < lowered.num_ranks(); ++rank) {
      const std::vector<Action>& list = lowered.actions[static_cast<size_t>(rank)];
      for (size_t i = 0; i < list.size(); ++i) {
        if (is_send(list[i].kind)) {
          ASSERT_GT(i, 0U);
          ASSERT_TRUE(is_compute(list[i - 1].kind)) << "a send stands directly after the action that makes its operand";
          ASSERT_EQ(list[i - 1].stage, list[i].stage);
          ASSERT_EQ(list[i - 1].microbatch, list[i].microbatch);
        }
        if (!is_receive(list[i].kind)) continue;
        // No receive could stand behind the next compute action: it, or a later one of its sender, is needed there.
        size_t next = i;
        while (!is_compute(list[next].kind)) ++next;
        Schedule later = lowered;
        std::vector<Action>& moved = later.actions[static_cast<size_t>(rank)];
        moved.insert(moved.begin() + static_cast<std::ptrdiff_t>(next) + 1, list[i]);
        moved.erase(moved.begin() + static_cast<std::ptrdiff_t>(i));
        ASSERT_FALSE(validate(later).empty()) << action_text(list[i]) << " of rank " << rank;
        num_moved_receives += list[next].stage != list[i].stage || list[next].microbatch != list[i].microbatch;
      }
    }
  }
  EXPECT_GT(num_moved_receives, 100) << "too few schedules in which the order of sends moves a receive";
}

}  // namespace
}  // namespace ashlar
