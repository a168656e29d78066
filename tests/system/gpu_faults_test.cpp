// Training on stand-in GPUs in which something goes wrong, with real processes over NCCL's stand-in: the job ends on
// all ranks with the record of who is missing in what, leaves nothing behind, and the last checkpoint loads.
#include <signal.h>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;

class GpuFaults : public SystemTest {
 protected:
  static Flags flags() {
    return tiny().with(kGrid221).with(
        "--num-layers 2 --device cuda --distributed-backend nccl --train-iters 6 --log-interval 1 --save ck "
        "--save-interval 1 --distributed-timeout-minutes 120s");
  }
  Ended run(const Flags& given, const std::string& nccl_fault = "") {
    Command command = pretrain_command(4, given);
    if (!nccl_fault.empty()) {
      command.environment["ASHLAR_STANDIN_NCCL_FAULT"] = nccl_fault;
    }
    command.timeout_seconds = 40;
    return run_command(command);
  }
  // On each of these ranks the job ended with the code of its error, and its operations were written down.
  static void expect_records(const Ended& ended, ErrorCode code, const std::vector<int>& ranks) {
    expect_bad_end(ended);
    EXPECT_EQ(ended.exit_code, exit_code(code)) << ended.err;
    for (const int rank : ranks) {
      EXPECT_THAT(ended.err, HasSubstr("flight recorder of rank " + std::to_string(rank)));
    }
    EXPECT_EQ(count(ended.err, "where everybody stands"), 1) << "one rank reports";
  }
  void expect_loads(int iteration) {
    const Ended resumed = run(flags().with("--load ck --train-iters " + std::to_string(iteration + 1)));
    expect_success(resumed);
    EXPECT_THAT(resumed.err, HasSubstr("resumed from ck at iteration " + std::to_string(iteration)));
  }
};

TEST_F(GpuFaults, RankThatNeverEntersACollectiveIsNamed) {
  const Ended ended = run(flags().with("--distributed-timeout-minutes 4s --test-hang rank=3,step=3,point=all-reduce"));
  expect_records(ended, ErrorCode::kTimeout, {0, 1, 2});
  // Its tensor peer waits for it in an all-reduce and the stage before in an exchange; whichever deadline comes first.
  EXPECT_THAT(
      ended.err,
      AllOf(ContainsRegex(
                "rank [12] waited [4-9].[0-9] s in (all_reduce.sum.|exchange) #[0-9]+ of 4096 bytes fp32 of group "
                "\"(tensor|pipeline 0>1)\": rank 3 never entered it; entered: [12] "
                ".see --distributed-timeout-minutes.; it was issued in step 3, action (1F0|0RECV_B0), "
                "micro-batch 0"),
            ContainsRegex("missing rank 3 .t1 p1 d0.: step 3, action 1F0, micro-batch 0; in no operation; last "
                          "finished in \"(tensor|pipeline 0>1)\": (all_reduce|exchange) #"),
            ContainsRegex("under way on the device of rank [12]:")));
  EXPECT_FALSE(snapshot("ck").contains("iter_0000003"));
  expect_loads(2);
}

TEST_F(GpuFaults, AsynchronousErrorOfNcclIsToldWithItsOperation) {
  // 20 all-reduces a step on the first stage and 24 on the last, so that #60 lies in step 3 of both.
  const Ended ended = run(flags(), "async,tensor,1,60");
  expect_records(ended, ErrorCode::kCommunication, {0, 1, 2, 3});
  EXPECT_THAT(ended.err,
              ContainsRegex("rank [13] hears of a failure from NCCL in group \"tensor\": .*under way there is "
                            "all_reduce.sum. #60 of 4096 bytes fp32, for .* it was issued in step 3, action "
                            "[01][FB][0-3], micro-batch [0-3]"));
  expect_loads(2);
}

// The parent of a communicator in the making waits for nothing else than those who do not come.
TEST_F(GpuFaults, StartOfAGroupThatHangsEndsTheJob) {
  const Ended ended = run(flags().with("--distributed-timeout-minutes 2s"), "init,tensor,1,1");
  expect_records(ended, ErrorCode::kTimeout, {0, 1, 2, 3});
  EXPECT_THAT(ended.err, HasSubstr("s in split #1 of group \"world\": all members entered it, and it did not end"));
}

TEST_F(GpuFaults, KilledRankEndsTheJobAndTheCheckpointLoads) {
  Process job(pretrain_command(4, flags().with("--train-iters 100000 --log-interval 1000 --save-interval 2")));
  ASSERT_TRUE(job.wait_for_output("saved iteration 2 to ck")) << job.err();
  const std::map<int, pid_t> ranks = job.ranks();
  ASSERT_EQ(ranks.size(), 4u);
  kill(ranks.at(2), SIGKILL);
  const Ended ended = job.wait();
  expect_bad_end(ended);
  EXPECT_THAT(ended.err, AnyOf(HasSubstr("a rank was ended by SIGKILL"), HasSubstr("the process of rank 2 is gone")));
  const int64_t saved = number_behind(ended.out, "saved iteration ");
  ASSERT_GE(saved, 2);
  expect_loads(static_cast<int>(saved));
}

}  // namespace
}  // namespace ashlar::system_test
