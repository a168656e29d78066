// A rank that dies, hangs, or computes a NaN: the job ends with a report that names it, and no weight is spoilt.
#include <signal.h>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

using LostRank = SystemTest;

TEST_F(LostRank, KilledRankEndsTheJobAndTheCheckpointLoads) {
  const Flags flags =
      tiny().with(kGrid221).with("--train-iters 100000 --log-interval 1000 --save ck --save-interval 5");
  for (const int victim : {0, 3}) {
    Process job(pretrain_command(4, flags));
    ASSERT_TRUE(job.wait_for_output("saved iteration 5 to ck")) << job.err();
    const std::map<int, pid_t> ranks = job.ranks();
    ASSERT_EQ(ranks.size(), 4u);
    kill(ranks.at(victim), SIGKILL);
    const Ended ended = job.wait();
    expect_bad_end(ended);
    EXPECT_THAT(ended.err, HasSubstr("a rank was ended by SIGKILL"));
  }
  const Ended resumed = pretrain(4, flags.with("--load ck --exit-interval 1"));
  expect_success(resumed);
  EXPECT_THAT(resumed.err, HasSubstr("resumed from ck at iteration "));
}

class HungRank : public SystemTest {
 protected:
  // Rank 3 stops for ever; the report names it, what it never entered, and where everybody stands.
  void expect_report(const std::string& point, const std::vector<std::string>& texts) {
    Command command =
        pretrain_command(4, tiny().with(kGrid221).with("--distributed-timeout-minutes 3s --save ck --save-interval 1 "
                                                       "--test-hang rank=3,step=3,point=" +
                                                       point));
    command.timeout_seconds = 40;
    const Ended ended = run_command(command);
    expect_bad_end(ended);
    EXPECT_EQ(ended.exit_code, exit_code(ErrorCode::kTimeout));
    for (const std::string& text : texts) {
      EXPECT_THAT(ended.err, HasSubstr(text));
    }
    EXPECT_THAT(ended.err,
                AllOf(HasSubstr("missing rank 3 (t1 p1 d0): step 3"), HasSubstr("last finished in"),
                      HasSubstr("where everybody stands"), HasSubstr("rank 0 (t0 p0 d0): step 3"),
                      HasSubstr("flight recorder of rank 0"), HasSubstr("see --distributed-timeout-minutes")));
    EXPECT_EQ(count(ended.err, "where everybody stands"), 1) << "one rank reports";
    EXPECT_THAT(ended.out, HasSubstr("saved iteration 2 to ck"));
    EXPECT_FALSE(snapshot("ck").contains("iter_0000003"));
  }
};

TEST_F(HungRank, BeforeAnAllReduce) {
  // Reported by its tensor peer or by a stage that waits for that one, whichever deadline comes first: the table and
  // the peer's flight recorder show the peer's wait either way.
  expect_report("all-reduce", {"all_reduce(sum) #", "of 4096 bytes fp32", "\"tensor\"",
                               "action 1F0, micro-batch 0; in no operation", "group \"tensor\" (closed)"});
}
TEST_F(HungRank, BeforeAReceive) {
  // Its tensor peer and, through that one, the first stage wait for it; whoever reports first names rank 3.
  expect_report("receive", {"action 1RECV_F0, micro-batch 0; in no operation"});
}
TEST_F(HungRank, BeforeACheckpoint) {
  expect_report("checkpoint",
                {"of group \"world\": rank 3 never entered it; entered: 0, 1, 2", "step 3, action save;"});
}

class NotANumber : public SystemTest {};

// On each rank of tensor 2 x pipeline 2, at step 4: all ranks stop, nothing is updated, the report says where.
TEST_F(NotANumber, StopsTheRunWithoutSpoilingIt) {
  const Flags flags = tiny().with(kGrid221).with("--check-weight-hash");
  expect_success(pretrain(4, flags.with("--metrics-file whole.jsonl")));
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const std::string name = std::to_string(rank);
    const Ended ended =
        pretrain(4, flags.with("--save ck" + name + " --save-interval 3 --metrics-file m" + name + ".jsonl")
                        .with("--test-nan rank=" + name + ",step=4"));
    const bool last_stage = rank >= 2;
    expect_error(ended, ErrorCode::kNumerics,
                 {"step 4: loss nan, gradient norm nan: first on rank " + name,
                  last_stage ? "stage 1, in the input of h.2, micro-batch 0 (samples 24 to 25)"
                             : "stage 0, in the input of h.0, micro-batch 0 (samples 24 to 25)",
                  "The weights are those of step 3"});
    EXPECT_THAT(ended.out, HasSubstr("lm loss: NAN |"));
    EXPECT_THAT(ended.out, HasSubstr("number of nan iterations:   1"));
    const std::vector<StepLine> steps = steps_of("m" + name + ".jsonl"), whole = steps_of("whole.jsonl");
    ASSERT_EQ(steps.size(), 4u);
    EXPECT_EQ(steps[3].loss, "nan");
    EXPECT_EQ(steps[3].grad_norm, "nan");
    EXPECT_EQ(steps[3].hashes, whole[2].hashes) << "the weights of step 3";
    // Without the fault the run goes on as if nothing had happened.
    if (rank == 3) {
      const std::string again = " --load ck3 --metrics-file m3.jsonl";
      expect_success(pretrain(4, flags.with(again)));
      expect_same_steps(steps_of("m3.jsonl"), whole);
    }
  }
}

TEST_F(NotANumber, GoesOnWhenAskedTo) {
  const Ended ended =
      pretrain(2, tiny().with(kGrid122).with(
                      "--test-nan rank=1,step=4 --no-check-for-nan-in-loss-and-grad --metrics-file m.jsonl"));
  expect_success(ended);
  const std::vector<StepLine> steps = steps_of("m.jsonl");
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps[5].loss, "nan");
  EXPECT_EQ(count(ended.out, "number of nan iterations:   1"), 3) << ended.out;
}

}  // namespace
}  // namespace ashlar::system_test
