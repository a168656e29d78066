// One case per kind of fault, each starting from a valid schedule; the message names rank, position and action.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/schedule/schedule.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(Validate, Missing) {
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0B0"})), ElementsAre("rank 0: 0B1 (or 0I1 and 0W1) is missing"));
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0B0 0I1"})), ElementsAre("rank 0: 0W1 is missing"));
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0B0 0W1"})), ElementsAre("rank 0: 0I1 is missing"));
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0B0 0B1"})), ElementsAre("rank 0: 0F1 is missing"));
}

TEST(Validate, Duplicates) {
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 0F0 0B0"})),
              ElementsAre("rank 0 position 1 (0F0): a duplicate of rank 0 position 0 (0F0)"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 0I0 0B0 0W0"})),
              ElementsAre("rank 0 position 2 (0B0): the same micro-batch has 0I0 too"));
}

TEST(Validate, Order) {
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0B0 0F0"})),
              ElementsAre("rank 0 position 0 (0B0) stands before rank 0 position 1 (0F0)"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 0W0 0I0"})),
              ElementsAre("rank 0 position 1 (0W0) stands before rank 0 position 2 (0I0)"));
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0B1 0B0"})),
              Contains("rank 0 position 3 (0B0) stands after rank 0 position 2 (0B1): weight gradients must come in "
                       "ascending micro-batch order"));
  // Weight gradients of B and W add into one buffer, so their common order counts.
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0I0 0B1 0W0"})),
              ElementsAre("rank 0 position 4 (0W0) stands after rank 0 position 3 (0B1): weight gradients must come in "
                          "ascending micro-batch order"));
  EXPECT_THAT(
      validate(text_schedule({0}, 2, {"0F1 0F0 0B0 0B1"})),
      ElementsAre("rank 0 position 1 (0F0) stands after rank 0 position 0 (0F1): forward must come in ascending "
                  "micro-batch order"));
}

TEST(Validate, PlacementAndRanges) {
  EXPECT_THAT(validate(text_schedule({0, 1}, 1, {"0F0 1F0", ""})),
              ElementsAre("rank 0 position 1 (1F0): stage 1 is on rank 1"));
  EXPECT_THAT(validate(text_schedule({0, 2}, 1, {"0F0", "1F0"})),
              Contains("stage 1 is given to rank 2, but there are 2 ranks"));
  EXPECT_THAT(validate(text_schedule({0, 0}, 1, {"0F0 1F0", ""})), ElementsAre("rank 1 has no stage"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 1F0"})), ElementsAre("rank 0 position 1 (1F0): there are 1 stages"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 0F1"})),
              ElementsAre("rank 0 position 1 (0F1): there are 1 micro-batches"));
  EXPECT_THAT(validate(Schedule{}), ElementsAre("the schedule has 0 micro-batches", "the schedule has no stages",
                                                "the schedule has no ranks"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 0B0 0REDUCE_GRAD1"})),
              ElementsAre("rank 0 position 2 (0REDUCE_GRAD1): there are 1 micro-batches"));
  Schedule window = text_schedule({0}, 1, {"0UNSHARD 0F0 0B0 0RESHARD"});
  window.actions[0][0].microbatch = 0;
  EXPECT_THAT(validate(window), ElementsAre("rank 0 position 0 (0UNSHARD0): this action belongs to no micro-batch, "
                                            "but carries 0"));
}

TEST(Validate, Transfers) {
  const std::string rank1 = "1RECV_F0 1F0 1B0 1SEND_B0";
  EXPECT_THAT(validate(text_schedule({0, 1}, 1, {"0F0 0SEND_F0 0RECV_B0 0B0", rank1})), IsEmpty());
  EXPECT_THAT(validate(text_schedule({0, 1}, 1, {"0F0 0RECV_B0 0B0", rank1})),
              ElementsAre("rank 0 position 0 (0F0): 0SEND_F0 is missing",
                          "rank 1 position 0 (1RECV_F0): rank 0 has no 0SEND_F0 to match it"));
  EXPECT_THAT(validate(text_schedule({0, 1}, 1, {"0F0 0SEND_F0 0B0", rank1})),
              ElementsAre("rank 0 position 2 (0B0): 0RECV_B0 is missing",
                          "rank 1 position 3 (1SEND_B0): rank 0 has no 0RECV_B0 to match it"));
  EXPECT_THAT(
      validate(text_schedule({0, 1}, 1, {"0SEND_F0 0F0 0RECV_B0 0B0", rank1})),
      ElementsAre("rank 0 position 0 (0SEND_F0) stands before rank 0 position 1 (0F0), which makes what it sends"));
  EXPECT_THAT(
      validate(text_schedule({0, 1}, 1, {"0F0 0SEND_F0 0B0 0RECV_B0", rank1})),
      ElementsAre("rank 0 position 3 (0RECV_B0) stands after rank 0 position 2 (0B0), which needs what it receives"));
  EXPECT_THAT(validate(text_schedule({0, 1}, 1, {"0SEND_B0 0F0 0SEND_F0 0RECV_B0 0B0", rank1})),
              Contains("rank 0 position 0 (0SEND_B0): there is no stage -1 at the other end"));
  EXPECT_THAT(validate(text_schedule({0, 0, 1}, 1,
                                     {"0F0 0SEND_F0 1F0 1SEND_F0 1RECV_B0 1B0 0B0", "2RECV_F0 2F0 2B0 2SEND_B0"})),
              ElementsAre("rank 0 position 1 (0SEND_F0): stage 1 is on the same rank, which needs no transfer"));
}

TEST(Validate, PairOrder) {
  // Each receive stands before its consumer and has its send, but the first message would meet the second receive.
  EXPECT_THAT(validate(text_schedule({0, 1}, 2,
                                     {"0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
                                      "1RECV_F1 1RECV_F0 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1"})),
              ElementsAre("transfer 0 from rank 0 to rank 1: rank 0 position 1 (0SEND_F0) meets rank 1 position 0 "
                          "(1RECV_F1)"));
  // The order of messages between other ranks, or in the other direction, does not matter.
  EXPECT_THAT(validate(text_schedule({0, 1}, 2,
                                     {"0RECV_B0 0F0 0SEND_F0 0F1 0SEND_F1 0B0 0RECV_B1 0B1",
                                      "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1"})),
              IsEmpty());
}

TEST(Validate, Deadlock) {
  // Rank 0 wants the gradient of micro-batch 0 before it has sent what rank 1 computes first: micro-batch 0 of stage 3.
  EXPECT_THAT(validate(text_schedule({0, 1}, 2, {"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"})),
              ElementsAre("deadlock: rank 0 position 1 (0B0) waits forever for 1B0 of rank 1",
                          "deadlock: rank 1 position 1 (1F1) waits forever for 0F1 of rank 0"));
  // The same with transfers.
  EXPECT_THAT(validate(text_schedule({0, 1}, 2,
                                     {"0F0 0SEND_F0 0RECV_B0 0B0 0F1 0SEND_F1 0RECV_B1 0B1",
                                      "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1"})),
              ElementsAre("deadlock: rank 0 position 3 (0B0) waits forever for 1SEND_B0 of rank 1",
                          "deadlock: rank 1 position 3 (1F1) waits forever for 0SEND_F1 of rank 0"));
  // Stages that share a rank, in the wrong order.
  EXPECT_THAT(validate(text_schedule({0, 0}, 1, {"1F0 0F0 1B0 0B0"})),
              ElementsAre("deadlock: rank 0 position 0 (1F0) waits forever for 0F0 of rank 0"));
}

TEST(Validate, ReduceGrads) {
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0B0 0REDUCE_GRAD 0B1"})),
              ElementsAre("rank 0 position 3 (0REDUCE_GRAD) stands before rank 0 position 4 (0B1), the last weight "
                          "gradient that it reduces"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 0I0 0REDUCE_GRAD 0W0"})),
              ElementsAre("rank 0 position 2 (0REDUCE_GRAD) stands before rank 0 position 3 (0W0), the last weight "
                          "gradient that it reduces"));
  EXPECT_THAT(validate(text_schedule({0, 0}, 1, {"0F0 1F0 1B0 1REDUCE_GRAD 0B0"})),
              ElementsAre("rank 0: 0REDUCE_GRAD is missing"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD"})),
              ElementsAre("rank 0 position 3 (0REDUCE_GRAD): a duplicate of rank 0 position 2 (0REDUCE_GRAD)"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0F0 0REDUCE_GRAD"})),
              ElementsAre("rank 0 position 1 (0REDUCE_GRAD): stage 0 has no weight gradients of micro-batch 0"));
}

TEST(Validate, ReduceGradsOfMicroBatches) {
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0I0 0W0 0F1 0I1 0REDUCE_GRAD0 0W1 0REDUCE_GRAD1"})), IsEmpty());
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0B0 0B1 0REDUCE_GRAD0 0REDUCE_GRAD1"})),
              ElementsAre("rank 0 position 4 (0REDUCE_GRAD0) stands after rank 0 position 3 (0B1), the stage's next "
                          "weight gradient"));
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0REDUCE_GRAD0 0B0 0B1 0REDUCE_GRAD1"})),
              ElementsAre("rank 0 position 2 (0REDUCE_GRAD0) stands before rank 0 position 3 (0B0), the weight "
                          "gradient that it reduces"));
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0B0 0B1 0REDUCE_GRAD1"})),
              ElementsAre("rank 0: 0REDUCE_GRAD0 is missing"));
  EXPECT_THAT(validate(text_schedule({0}, 2, {"0F0 0F1 0B0 0REDUCE_GRAD0 0B1 0REDUCE_GRAD"})),
              ElementsAre("rank 0 position 5 (0REDUCE_GRAD) is of a whole step and rank 0 position 3 (0REDUCE_GRAD0) "
                          "of one micro-batch: a schedule has one kind"));
  EXPECT_THAT(validate(text_schedule({0, 0}, 1, {"0F0 1F0 1B0 1REDUCE_GRAD0 0B0"})),
              ElementsAre("rank 0: 0REDUCE_GRAD0 is missing"));
}

TEST(Validate, ParameterWindows) {
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0UNSHARD 0F0 0RESHARD 0UNSHARD 0B0 0RESHARD"})), IsEmpty());
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0UNSHARD 0F0 0RESHARD 0B0"})),
              ElementsAre("rank 0 position 3 (0B0): stage 0 is not whole here"));
  EXPECT_THAT(
      validate(text_schedule({0}, 1, {"0UNSHARD 0F0 0UNSHARD 0B0"})),
      ElementsAre("rank 0 position 2 (0UNSHARD): stage 0 is whole already", "rank 0: 0RESHARD is missing at the end"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0RESHARD 0UNSHARD 0F0 0B0 0RESHARD"})),
              ElementsAre("rank 0 position 0 (0RESHARD): stage 0 is not whole here"));
  EXPECT_THAT(validate(text_schedule({0}, 1, {"0UNSHARD 0F0 0I0 0RESHARD 0W0"})), IsEmpty());
  EXPECT_THAT(validate(text_schedule({0, 0}, 1, {"0UNSHARD 0F0 1UNSHARD 1F0 1B0 1RESHARD 0B0 0RESHARD"})),
              ElementsAre("rank 0 position 2 (1UNSHARD): stage 0 is whole already",
                          "rank 0 position 6 (0B0): stage 0 is not whole here",
                          "rank 0 position 7 (0RESHARD): stage 0 is not whole here"));
}

}  // namespace
}  // namespace ashlar
