#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "parallel/schedule/schedule.h"
#include "runtime/base/error.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

using testing::ElementsAre;

TEST(Lower, TwoRanks) {
  const Schedule lowered = lower(make_one_f_one_b(2, 2));
  EXPECT_EQ(list_text(lowered.actions[0]), "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD");
  EXPECT_EQ(list_text(lowered.actions[1]), "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 1REDUCE_GRAD");
  const Schedule without = lower(make_one_f_one_b(2, 2), {.grad_reduce = GradReduce::kNone});
  EXPECT_EQ(list_text(without.actions[1]), "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1");
}

// Rank 0 sends 0F0 0F1 2F0 2F1 2B0 2B1, but rank 1 needs 1F0 3F0 1F1 1B0 3F1 1B1: two receives move forward.
TEST(Lower, ReceivesKeepTheOrderOfTheSends) {
  const Schedule loop =
      text_schedule({0, 1, 0, 1}, 2, {"0F0 0F1 2F0 2F1 2B0 0B0 2B1 0B1", "1F0 3F0 3B0 1F1 1B0 3F1 3B1 1B1"});
  const Schedule lowered = lower(loop);
  EXPECT_THAT(validate(lowered), ElementsAre());
  EXPECT_EQ(list_text(lowered.actions[1]),
            "1RECV_F0 1F0 1SEND_F0 1RECV_F1 3RECV_F0 3F0 3B0 3SEND_B0 1F1 1SEND_F1 3RECV_F1 1RECV_B0 1B0 1SEND_B0 3F1 "
            "3B1 3SEND_B1 1RECV_B1 3REDUCE_GRAD 1B1 1SEND_B1 1REDUCE_GRAD");
  // Stage 1 holds both micro-batches while the second one waits in its receive buffer.
  EXPECT_EQ(max_live_microbatches(loop, 1), 2);
  EXPECT_EQ(max_live_microbatches(lowered, 1), 2);
}

// Stages 1 and 2 share rank 1: they hand over in memory, and so do the two directions between them.
TEST(Lower, VShape) {
  const Schedule v =
      text_schedule({0, 1, 1, 0}, 2, {"0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"});
  const Schedule lowered = lower(v);
  EXPECT_THAT(validate(lowered), ElementsAre());
  EXPECT_EQ(list_text(lowered.actions[0]),
            "0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 3F0 3B0 3SEND_B0 3RECV_F1 3F1 3B1 3SEND_B1 0RECV_B0 3REDUCE_GRAD 0B0 "
            "0RECV_B1 0B1 0REDUCE_GRAD");
  EXPECT_EQ(
      list_text(lowered.actions[1]),
      "1RECV_F0 1F0 2F0 2SEND_F0 1RECV_F1 1F1 2F1 2SEND_F1 2RECV_B0 2B0 1B0 1SEND_B0 2RECV_B1 2B1 2REDUCE_GRAD 1B1 "
      "1SEND_B1 1REDUCE_GRAD");
}

// The input gradient leaves after I; W needs no transfer, and the reduction waits for the last W.
TEST(Lower, SplitBackward) {
  const Schedule split = text_schedule({0, 1}, 2, {"0F0 0F1 0I0 0I1 0W0 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"});
  const Schedule lowered = lower(split);
  EXPECT_THAT(validate(lowered), ElementsAre());
  EXPECT_EQ(list_text(lowered.actions[0]), "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0RECV_B1 0I1 0W0 0W1 0REDUCE_GRAD");
  EXPECT_EQ(list_text(lowered.actions[1]), "1RECV_F0 1F0 1I0 1SEND_B0 1RECV_F1 1F1 1I1 1SEND_B1 1W0 1W1 1REDUCE_GRAD");
}

TEST(Lower, RefusesWhatIsInvalidOrLowered) {
  EXPECT_THROW(lower(text_schedule({0}, 2, {"0F0 0F1 0B0"})), Error);
  EXPECT_THROW(lower(lower(make_one_f_one_b(2, 2))), Error);
}

TEST(Lower, KeepsParameterWindows) {
  const Schedule windows = text_schedule({0}, 2, {"0UNSHARD 0F0 0F1 0B0 0B1 0RESHARD"});
  EXPECT_EQ(list_text(lower(windows).actions[0]), "0UNSHARD 0F0 0F1 0B0 0B1 0REDUCE_GRAD 0RESHARD");
  EXPECT_THROW(lower(windows, {.shard_windows = true}), Error);
}

// Behind the transfers, which another rank may wait for, and before the next weight gradient.
TEST(Lower, ReducesEachMicroBatch) {
  const Schedule lowered = lower(make_one_f_one_b(2, 2), {.grad_reduce = GradReduce::kMicroBatch});
  EXPECT_THAT(validate(lowered), ElementsAre());
  EXPECT_EQ(list_text(lowered.actions[0]),
            "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0REDUCE_GRAD0 0B1 0REDUCE_GRAD1");
  EXPECT_EQ(list_text(lowered.actions[1]),
            "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1REDUCE_GRAD0 1F1 1B1 1SEND_B1 1REDUCE_GRAD1");
  const Schedule split = text_schedule({0}, 2, {"0F0 0F1 0I0 0I1 0W0 0B1"});
  EXPECT_THROW(lower(split, {.grad_reduce = GradReduce::kMicroBatch}), Error);
  const Schedule late = text_schedule({0}, 2, {"0F0 0F1 0I0 0I1 0W0 0W1"});
  EXPECT_EQ(list_text(lower(late, {.grad_reduce = GradReduce::kMicroBatch}).actions[0]),
            "0F0 0F1 0I0 0I1 0W0 0REDUCE_GRAD0 0W1 0REDUCE_GRAD1");
}

TEST(Lower, WindowsAroundWhatReadsValues) {
  const Schedule lowered = lower(make_one_f_one_b(2, 2), {.shard_windows = true});
  EXPECT_THAT(validate(lowered), ElementsAre());
  EXPECT_EQ(list_text(lowered.actions[0]),
            "0UNSHARD 0F0 0RESHARD 0SEND_F0 0UNSHARD 0F1 0RESHARD 0SEND_F1 0RECV_B0 0UNSHARD 0B0 0RESHARD 0RECV_B1 "
            "0UNSHARD 0B1 0RESHARD 0REDUCE_GRAD");
  EXPECT_EQ(list_text(lowered.actions[1]),
            "1RECV_F0 1UNSHARD 1F0 1B0 1RESHARD 1SEND_B0 1RECV_F1 1UNSHARD 1F1 1B1 1RESHARD 1SEND_B1 1REDUCE_GRAD");
  const Schedule both = lower(make_gpipe(1, 2), {.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true});
  EXPECT_EQ(list_text(both.actions[0]),
            "0UNSHARD 0F0 0F1 0B0 0RESHARD 0REDUCE_GRAD0 0UNSHARD 0B1 0RESHARD 0REDUCE_GRAD1");
  const Schedule forward = lower(make_forward_only(2, 2), {.grad_reduce = GradReduce::kNone, .shard_windows = true});
  EXPECT_EQ(list_text(forward.actions[1]), "1RECV_F0 1UNSHARD 1F0 1RESHARD 1RECV_F1 1UNSHARD 1F1 1RESHARD");
}

// Several stages of a rank take turns, and only one is whole at a time.
TEST(Lower, WindowsOfSeveralStages) {
  const Schedule v = text_schedule({0, 1, 1, 0}, 1, {"0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"});
  const Schedule lowered = lower(v, {.shard_windows = true});
  EXPECT_THAT(validate(lowered), ElementsAre());
  EXPECT_EQ(list_text(lowered.actions[1]),
            "1RECV_F0 1UNSHARD 1F0 1RESHARD 2UNSHARD 2F0 2RESHARD 2SEND_F0 2RECV_B0 2UNSHARD 2B0 2RESHARD 2REDUCE_GRAD "
            "1UNSHARD 1B0 1RESHARD 1SEND_B0 1REDUCE_GRAD");
}

TEST(Lower, WindowsAroundWeightPasses) {
  const Schedule split = text_schedule({0}, 2, {"0F0 0I0 0F1 0W0 0I1 0W1"});
  EXPECT_EQ(list_text(lower(split, {.shard_windows = true}).actions[0]),
            "0UNSHARD 0F0 0I0 0F1 0RESHARD 0W0 0UNSHARD 0I1 0RESHARD 0W1 0REDUCE_GRAD");
  EXPECT_EQ(list_text(lower(split, {.shard_windows = true, .weight_windows = true}).actions[0]),
            "0UNSHARD 0F0 0I0 0F1 0W0 0I1 0W1 0RESHARD 0REDUCE_GRAD");
}

TEST(Lower, MergeBackward) {
  const Schedule split = text_schedule({0}, 3, {"0F0 0F1 0F2 0I0 0I1 0W0 0I2 0W2 0W1"});
  EXPECT_EQ(list_text(merge_backward(split).actions[0]), "0F0 0F1 0F2 0I0 0I1 0W0 0B2 0W1");
}

}  // namespace
}  // namespace ashlar
