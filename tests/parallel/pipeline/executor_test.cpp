// The executor follows any valid list: split or whole backward passes, one or several stages on a rank, in any
// placement, all give the same bits, because they do the same sums in the same order.
#include "parallel/pipeline/executor.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/device/cpu/cpu_device.h"
#include "tests/parallel/pipeline/run_schedule.h"

namespace ashlar {
namespace {

using test::kSteps;
using test::Outcome;
using test::PipelineRig;
using test::run;
using test::schedule_from;

void expect_equal(const Outcome& ours, const Outcome& expected) {
  EXPECT_EQ(ours.losses, expected.losses);
  EXPECT_EQ(ours.evaluation, expected.evaluation);
  EXPECT_EQ(ours.weights, expected.weights);
  EXPECT_GT(expected.losses[0], 0);
}

Schedule one_rank(int num_microbatches = 4) {
  return make_one_f_one_b(1, num_microbatches);
}

TEST(Executor, TrainsAtAll) {
  const Outcome outcome = run(one_rank(), {4});
  EXPECT_GT(outcome.losses[0], 0);
  EXPECT_NE(outcome.losses[0], outcome.losses[1]);
  EXPECT_EQ(outcome.weights.size(), 2u + 4 * 12 + 2);
}

// Zero-bubble's kind of list: input gradients at once, weight gradients when there is time.
const char* const kSplitRank0 = "0F0 0F1 0I0 0F2 0I1 0W0 0F3 0I2 0W1 0I3 0W2 0W3";
const char* const kSplitRank1 = "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3";

TEST(Executor, SplitBackwardEqualsWholeBackward) {
  const Schedule split = schedule_from(4, {0, 1}, {kSplitRank0, kSplitRank1});
  expect_equal(run(split, {2, 2}), run(make_one_f_one_b(2, 4), {2, 2}));
  expect_equal(run(split, {1, 3}, 2), run(make_one_f_one_b(2, 4), {1, 3}, 2));
}

// What is made again lies with the pending gradients of its micro-batch until the weight gradients have been made.
TEST(Executor, RecomputationChangesNoBitOfSplitBackward) {
  const Schedule split = schedule_from(4, {0, 1}, {kSplitRank0, kSplitRank1});
  const Outcome expected = run(make_one_f_one_b(2, 4), {2, 3}, 1, {}, {}, 0.1);
  expect_equal(run(split, {2, 3}, 1, {}, {}, 0.1), expected);
  for (const int64_t layers : {1, 2}) {
    for (const RecomputeMethod method : {RecomputeMethod::kUniform, RecomputeMethod::kBlock}) {
      expect_equal(run(split, {2, 3}, 1, {}, {.method = method, .num_layers = layers, .selective = {}}, 0.1), expected);
    }
  }
  for (const SelectiveRecompute selective :
       {SelectiveRecompute{.core_attn = true}, SelectiveRecompute{.layernorm = true},
        SelectiveRecompute{.mlp_act = true}}) {
    expect_equal(run(split, {2, 3}, 1, {}, {.selective = selective}, 0.1), expected);
  }
}

// A tied table is used at both ends of one path: on one rank with split passes its gradient must not be doubled.
TEST(Executor, SplitBackwardOnOneRankCountsATiedTableOnce) {
  const Schedule split = schedule_from(4, {0}, {"0F0 0I0 0F1 0I1 0F2 0W0 0W1 0I2 0F3 0I3 0W2 0W3"});
  expect_equal(run(split, {2}), run(one_rank(), {2}));
}

TEST(Executor, SchedulesAndPlacementsGiveEqualBits) {
  const Outcome expected = run(one_rank(), {4});
  expect_equal(run(make_gpipe(1, 4), {4}), expected);
  expect_equal(run(make_one_f_one_b(2, 4), {2, 2}), expected);
  expect_equal(run(make_gpipe(2, 4), {3, 1}), expected);
  expect_equal(run(make_one_f_one_b(4, 4), {1, 1, 1, 1}), expected);
}

TEST(Executor, SeveralStagesOnOneRank) {
  const Outcome expected = run(one_rank(), {4});
  expect_equal(
      run(schedule_from(4, {0, 0}, {"0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1 0F2 0F3 1F2 1F3 1B2 0B2 1B3 0B3"}), {3, 1}),
      expected);
  expect_equal(run(schedule_from(4, {0, 0, 0},
                                 {"0F0 1F0 2F0 2I0 1I0 0F1 2W0 1W0 0I0 0W0 1F1 2F1 2B1 1B1 0B1 "
                                  "0F2 0F3 1F2 2F2 1F3 2F3 2B2 2B3 1B2 1B3 0B2 0B3"}),
                   {1, 2, 1}),
               expected);
}

// A V: the first rank holds the first and the last stage, so both uses of the tied table.
TEST(Executor, VShapedPlacement) {
  const Outcome expected = run(one_rank(), {4});
  const Schedule whole = schedule_from(4, {0, 1, 1, 0},
                                       {"0F0 0F1 3F0 3B0 0F2 0B0 3F1 3B1 0F3 0B1 3F2 3B2 0B2 3F3 3B3 0B3",
                                        "1F0 2F0 1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1 1F3 2F3 2B2 1B2 2B3 1B3"});
  expect_equal(run(whole, {1, 1, 1, 1}), expected);
  const Schedule split =
      schedule_from(4, {0, 1, 1, 0},
                    {"0F0 0F1 3F0 3I0 0F2 3W0 0I0 3F1 3I1 0W0 0F3 3W1 0I1 0W1 3F2 3I2 3W2 0I2 3F3 0W2 3I3 0I3 3W3 0W3",
                     "1F0 2F0 1F1 2F1 2I0 1I0 2W0 1F2 2F2 1W0 2I1 1I1 2W1 1W1 1F3 2F3 2B2 1B2 2I3 1I3 1W3 2W3"});
  expect_equal(run(split, {1, 1, 1, 1}), expected);
  // Two stages a rank, one behind the other around the ring: three hops.
  const Schedule looped = schedule_from(4, {0, 1, 0, 1},
                                        {"0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1 0F2 0F3 2F2 2F3 2B2 2B3 0B2 0B3",
                                         "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 1F2 1F3 3F2 3B2 3F3 3B3 1B2 1B3"});
  expect_equal(run(looped, {1, 1, 1, 1}), expected);
}

// Both copies of a tied table get the same sum of the two uses' gradients in every step, whatever the list.
TEST(Executor, TiedCopiesAreEqualBehindEveryStep) {
  const std::vector<Schedule> lists{make_one_f_one_b(4, 4), schedule_from(4, {0, 1}, {kSplitRank0, kSplitRank1}),
                                    schedule_from(4, {0, 1, 0, 1},
                                                  {"0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1 0F2 0F3 2F2 2F3 2B2 2B3 0B2 0B3",
                                                   "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 1F2 1F3 3F2 3B2 3F3 3B3 1B2 1B3"})};
  for (const Schedule& list : lists) {
    std::map<int, std::vector<uint64_t>> hashes;  // by step, of every holder
    std::mutex mutex;
    run_ranks(list.num_ranks(), [&](RankContext& rank) {
      const std::vector<int64_t> layers(list.stage_to_rank.size(), 1);
      PipelineRig rig(rank, test::rig_config(list.num_stages()), layers, list);
      for (int step = 0; step <= kSteps; ++step) {
        for (const ParameterStore::Entry& entry : rig.store.entries()) {
          const ConstTensorView value = entry.parameter->value;
          if (entry.parameter->name == "wte.weight") {
            const std::lock_guard lock(mutex);
            hashes[step].push_back(hash_bytes(value.data, value.bytes()));
          }
        }
        rig.step(step);
      }
    });
    for (int step = 0; step <= kSteps; ++step) {
      ASSERT_EQ(hashes[step].size(), 2u);
      EXPECT_EQ(hashes[step][0], hashes[step][1]) << "step " << step;
      EXPECT_TRUE(step == 0 || hashes[step][0] != hashes[step - 1][0]) << "step " << step;
    }
  }
}

TEST(Executor, QueuedStreamsGiveEqualBits) {
  const Schedule split = schedule_from(4, {0, 1}, {kSplitRank0, kSplitRank1});
  expect_equal(run(split, {2, 2}, 2, {.queued_streams = true}), run(split, {2, 2}, 2));
  expect_equal(run(one_rank(), {4}, 1, {.queued_streams = true}), run(one_rank(), {4}));
}

// The host reads micro-batch 1 while the stream is still busy with the weight gradients of micro-batch 0, which need
// its tokens and the slot they came in.
TEST(Executor, ReadsAheadWithoutDisturbingTheStream) {
  const Schedule split = schedule_from(4, {0}, {"0F0 0I0 0W0 0F1 0I1 0W1 0F2 0I2 0W2 0F3 0I3 0W3"});
  const Outcome expected = run(split, {1});
  Outcome slow;
  run_ranks_queued(1, [&](RankContext& rank) {
    PipelineRig rig(rank, test::rig_config(1), {1}, split);
    ExecutorHooks hooks;
    hooks.before_action = [&](const Action& action) {
      if (action.kind == ActionKind::kBackwardWeight) {
        cpu_stream(*rig.stream).enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
      }
    };
    rig.executor.set_hooks(hooks);
    for (int step = 0; step < kSteps; ++step) {
      slow.losses.push_back(rig.step(step));
    }
  });
  EXPECT_EQ(slow.losses, expected.losses);
}

TEST(Executor, KnowsItsBytesAndTakesNoMore) {
  run_ranks(2, [](RankContext& rank) {
    const int64_t before = rank.device.allocated_bytes();
    PipelineRig rig(rank, test::rig_config(4), {2, 2}, make_one_f_one_b(2, 4));
    const int64_t allocations = rank.device.num_allocations();
    const PipelineBytes& bytes = rig.executor.bytes();
    EXPECT_GT(bytes.activations, 0u);
    EXPECT_GT(bytes.gradients, 0u);
    const int slots = count_slots(lower(make_one_f_one_b(2, 4)), rank.world.rank(), false).activations;
    EXPECT_EQ(bytes.activations, static_cast<size_t>(slots) * rig.chunks.front()->saved_bytes(PipelineRig::kShape));
    EXPECT_GE(rank.device.allocated_bytes() - before,
              static_cast<int64_t>(bytes.total() + rig.store.value_bytes() + rig.store.grad_bytes()));
    rig.step(0);
    rig.evaluate(0);
    EXPECT_EQ(rank.device.num_allocations(), allocations);
  });
}

// Both directions of a turn go out together: eight transfers of a step in five exchanges.
TEST(Executor, TransfersWithoutComputeBetweenThemAreOneExchange) {
  run_ranks(2, [](RankContext& rank) {
    PipelineRig rig(rank, test::rig_config(2), {1, 1}, make_one_f_one_b(2, 4));
    rig.step(0);
    EXPECT_EQ(rig.grid.pipeline().num_ops(OpKind::kExchange), 5);
  });
}

TEST(Executor, RefusesAnInvalidList) {
  EXPECT_THROW(run(schedule_from(2, {0}, {"0F0 0B0 0F1"}), {1}), Error);
  EXPECT_THROW(run(schedule_from(2, {0}, {"0F0 0F1 0B1 0B0"}), {1}), Error);
}

}  // namespace
}  // namespace ashlar
