// Slots: the planner's numbers, and what goes wrong when a list breaks the rules.
#include "parallel/pipeline/slots.h"

#include <gtest/gtest.h>

#include "tests/parallel/pipeline/pipeline_rig.h"

namespace ashlar {
namespace {

TEST(SlotPool, TakesTheLowestFreeSlot) {
  SlotPool pool(5, 2);
  EXPECT_EQ(pool.take(3), 0);
  EXPECT_EQ(pool.take(1), 1);
  EXPECT_EQ(pool.of(3), 0);
  EXPECT_THROW(pool.take(2), Error);  // full
  pool.release(3);
  EXPECT_FALSE(pool.holds(3));
  EXPECT_THROW(pool.of(3), Error);
  EXPECT_THROW(pool.release(3), Error);
  EXPECT_EQ(pool.take(4), 0);
  EXPECT_EQ(pool.most_used(), 2);
  pool.reset();
  EXPECT_FALSE(pool.holds(1));
  EXPECT_EQ(pool.take(1), 0);
  EXPECT_THROW(pool.take(1), Error);  // twice
}

// Activation slots are exactly the micro-batches alive at once: what memory costs is what the schedule says.
TEST(CountSlots, ActivationsAreTheLiveMicrobatches) {
  for (const int p : {1, 2, 3, 4, 8}) {
    for (const int m : {1, 2, 3, 4, 7, 16}) {
      for (const auto& compute : {make_gpipe(p, m), make_one_f_one_b(p, m)}) {
        const Schedule schedule = lower(compute);
        for (int stage = 0; stage < p; ++stage) {
          const SlotCounts counts = count_slots(schedule, stage, false);
          EXPECT_EQ(counts.activations, max_live_microbatches(schedule, stage))
              << compute.name << " p" << p << " m" << m;
          EXPECT_EQ(counts.pending_gradients, 0);
          EXPECT_EQ(counts.output_gradients > 0, stage + 1 < p);
        }
      }
    }
  }
}

TEST(CountSlots, OneFOneBNeedsAsManyAsThereAreStagesBehind) {
  const Schedule schedule = lower(make_one_f_one_b(4, 16));
  // The last stage receives one micro-batch while it works on another only where the list places the receive early.
  for (int stage = 0; stage < 4; ++stage) {
    const int live = count_slots(schedule, stage, false).activations;
    EXPECT_GE(live, 4 - stage);
    EXPECT_LE(live, 4 - stage + 1);
    EXPECT_EQ(count_slots(lower(make_gpipe(4, 16)), stage, false).activations, 16);
  }
}

TEST(CountSlots, ForwardOnlyKeepsNothing) {
  for (const int p : {1, 2, 4}) {
    const Schedule schedule = lower(make_forward_only(p, 9), {.grad_reduce = GradReduce::kNone});
    for (int stage = 0; stage < p; ++stage) {
      const SlotCounts counts = count_slots(schedule, stage, true);
      EXPECT_LE(counts.activations, 2);
      EXPECT_EQ(counts.output_gradients, 0);
      EXPECT_EQ(counts.pending_gradients, 0);
    }
  }
}

// Windows and reductions hold no activations.
TEST(CountSlots, DoNotDependOnWindowsAndReductions) {
  for (const std::string& name : schedule_names()) {
    const Schedule plain = lower(make_schedule(name, 3, 5));
    const Schedule all =
        lower(make_schedule(name, 3, 5), {.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true});
    for (int stage = 0; stage < 3; ++stage) {
      const SlotCounts expected = count_slots(plain, stage, false), counts = count_slots(all, stage, false);
      EXPECT_EQ(counts.activations, expected.activations);
      EXPECT_EQ(counts.output_gradients, expected.output_gradients);
      EXPECT_EQ(counts.pending_gradients, expected.pending_gradients);
    }
  }
}

TEST(CountSlots, WeightGradientsThatWaitNeedSlots) {
  const Schedule schedule = lower(test::schedule_from(3, {0}, {"0F0 0I0 0F1 0I1 0W0 0F2 0W1 0I2 0W2"}));
  ASSERT_TRUE(validate(schedule).empty());
  const SlotCounts counts = count_slots(schedule, 0, false);
  EXPECT_EQ(counts.pending_gradients, 2);
  EXPECT_EQ(counts.pending_gradients, max_pending_weight_grads(schedule, 0));
  EXPECT_EQ(counts.activations, 2);
}

// Stages on one rank hand over in memory: the forward pass of one takes the activation slot of the next.
TEST(CountSlots, NeighboursOnOneRank) {
  const Schedule schedule = lower(test::schedule_from(2, {0, 0}, {"0F0 0F1 1F0 1B0 0B0 1F1 1B1 0B1"}));
  ASSERT_TRUE(validate(schedule).empty());
  EXPECT_EQ(count_slots(schedule, 0, false).activations, 2);
  EXPECT_EQ(count_slots(schedule, 1, false).activations, 2);
  EXPECT_EQ(count_slots(schedule, 0, false).output_gradients, 1);
  EXPECT_EQ(count_slots(schedule, 1, false).output_gradients, 0);
}

// Every list that is valid walks through with the counted slots and gives all of them back.
TEST(SlotEvents, EverySlotIsGivenBack) {
  for (const auto& compute :
       {make_gpipe(3, 5), make_one_f_one_b(4, 7),
        test::schedule_from(2, {0, 1, 1, 0},
                            {"0F0 3F0 3I0 0F1 3W0 0I0 0W0 3F1 3B1 0B1", "1F0 2F0 2I0 2W0 1I0 1F1 2F1 1W0 2B1 1B1"})}) {
    const Schedule schedule = lower(compute);
    ASSERT_TRUE(validate(schedule).empty()) << validate(schedule).front();
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      std::vector<std::vector<SlotPool>> pools(static_cast<size_t>(schedule.num_stages()));
      for (size_t stage = 0; stage < pools.size(); ++stage) {
        const SlotCounts counts = count_slots(schedule, static_cast<int>(stage), false);
        for (const int capacity : {counts.activations, counts.output_gradients, counts.pending_gradients}) {
          pools[stage].emplace_back(schedule.num_microbatches, capacity);
        }
      }
      for (const Action& action : schedule.actions[rank]) {
        const SlotEvents events = slot_events(schedule, action, false);
        for (const SlotEvent& event : events.before) {
          pools[static_cast<size_t>(event.stage)][static_cast<size_t>(event.kind)].take(event.microbatch);
        }
        for (const SlotEvent& event : events.after) {
          pools[static_cast<size_t>(event.stage)][static_cast<size_t>(event.kind)].release(event.microbatch);
        }
      }
      for (const auto& of_stage : pools) {
        for (const SlotPool& pool : of_stage) {
          for (int microbatch = 0; microbatch < schedule.num_microbatches; ++microbatch) {
            EXPECT_FALSE(pool.holds(microbatch));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ashlar
