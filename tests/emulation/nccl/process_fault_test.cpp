// Processes on stand-in GPUs, joined by NCCL's stand-in in shared memory: a rank that sleeps, dies or errs, and NCCL
// that fails. The job ends by itself, on all ranks, with the record of who is missing in what. Started with the paths
// of run_ranks.sh and of the fault program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::string run_ranks_script;
std::string fault_program;

struct Ended {
  int exit_code = -1;
  std::string output;
  double seconds = 0;
};

// 124 is the exit code of `timeout`: the job hung.
Ended run_job(const std::string& fault, int faulty_rank, const std::string& timeout_seconds,
              const std::string& environment = "") {
  const auto start = std::chrono::steady_clock::now();
  const std::string command = "env RUN_RANKS_TIMEOUT=40 " + environment + " " + run_ranks_script + " 4 " +
                              fault_program + " " + fault + " " + std::to_string(faulty_rank) + " " + timeout_seconds +
                              " 2>&1";
  Ended ended;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ended.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return ended;
}

// All ranks end, soon, and those that can say where they stood.
void expect_ended_with_error(const Ended& ended, double within_seconds) {
  EXPECT_NE(ended.exit_code, 0) << ended.output;
  EXPECT_NE(ended.exit_code, 124) << "the job hung: " << ended.output;
  EXPECT_LT(ended.seconds, within_seconds) << ended.output;
}

void expect_every_rank_but(int silent_rank, const Ended& ended) {
  for (int rank = 0; rank < 4; ++rank) {
    if (rank != silent_rank) {
      EXPECT_THAT(ended.output, HasSubstr("flight recorder of rank " + std::to_string(rank)));
    }
  }
}

TEST(NcclProcesses, NoFaultEndsWellAndLeavesNothingBehind) {
  const Ended ended = run_job("none", 0, "30");
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_EQ(ended.output, "");
}

// Several ranks wait for rank 3, or for one that does. The first to come to its deadline reports; the others dump what
// they have under way.
TEST(NcclProcesses, RankThatNeverEntersACollectiveIsNamed) {
  const Ended ended = run_job("sleep_collective", 3, "1");
  expect_ended_with_error(ended, 20);
  EXPECT_THAT(
      ended.output,
      AllOf(
          ContainsRegex("waited 1.[0-9] s in (all_reduce.sum. #3 of 4000 bytes fp32 of group \"tensor\"|exchange #3 of "
                        "4000 bytes fp32 of group \"pipeline 0>1\"): rank 3 never entered it; entered: [12] .see "
                        "--distributed-timeout-minutes.; it was issued in step 2, action 1F2, micro-batch 2"),
          HasSubstr("missing rank 3 (t1 p1 d0): step 2, action 1F2, micro-batch 2; in no operation; last finished in"),
          HasSubstr("all_reduce(sum) #3 of 4000 bytes fp32, NOT FINISHED, step 2, action 1F2, micro-batch 2")));
  expect_every_rank_but(3, ended);
}

TEST(NcclProcesses, RankThatNeverReceivesIsNamed) {
  const Ended ended = run_job("sleep_receive", 3, "1");
  expect_ended_with_error(ended, 20);
  EXPECT_THAT(ended.output, AllOf(ContainsRegex("rank (1, )?3 never entered it; entered: "),
                                  HasSubstr("missing rank 3 (t1 p1 d0): step 2"),
                                  HasSubstr("exchange #3 of 4000 bytes fp32, NOT FINISHED, step 2")));
  expect_every_rank_but(3, ended);
}

TEST(NcclProcesses, RankThatSleepsBeforeABarrierOfTheHostIsNamed) {
  const Ended ended = run_job("sleep_barrier", 3, "1");
  expect_ended_with_error(ended, 20);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("of group \"world\": rank 3 never entered it; entered: 0, 1, 2"),
                                  HasSubstr("missing rank 3 (t1 p1 d0): step 2")));
}

TEST(NcclProcesses, DifferentOperationsAreNamed) {
  const Ended ended = run_job("other_op", 1, "20");
  expect_ended_with_error(ended, 20);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("operation #3 of group \"tensor\" is not the same on all members"),
                                  HasSubstr("rank 1 calls broadcast(root 0) #3 of 4000 bytes fp32"),
                                  HasSubstr("rank 0 calls all_reduce(sum) #3 of 4000 bytes fp32")));
}

TEST(NcclProcesses, KilledRankEndsTheJobLongBeforeTheDeadline) {
  const Ended ended = run_job("kill", 2, "600");
  expect_ended_with_error(ended, 20);
  EXPECT_THAT(ended.output, AnyOf(HasSubstr("the process of rank 2 is gone"), HasSubstr("whose process is gone"),
                                  HasSubstr("rank was ended by SIG")));
}

TEST(NcclProcesses, ErrorOfNcclIsToldWithTheOperation) {
  const Ended ended = run_job("none", 0, "600", "ASHLAR_STANDIN_NCCL_FAULT=async,tensor,1,2");
  expect_ended_with_error(ended, 20);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("a failure from NCCL in group \"tensor\""),
                                  HasSubstr("under way there is all_reduce(sum) #2 of 4000 bytes fp32"),
                                  HasSubstr("it was issued in step 1, action 1F2, micro-batch 2")));
}

TEST(NcclProcesses, ErrorOfOneRankIsTheJobs) {
  const Ended ended = run_job("data", 1, "600");
  expect_ended_with_error(ended, 20);
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_THAT(ended.output, HasSubstr("[rank 1] [error] train.bin: truncated"));
}

TEST(NcclProcesses, StartThatHangsIsTold) {
  const Ended ended = run_job("none", 0, "1", "ASHLAR_STANDIN_NCCL_FAULT=init,world,2,1");
  expect_ended_with_error(ended, 20);
  EXPECT_THAT(ended.output, HasSubstr("for the other ranks at the start of NCCL (ncclCommInitRankConfig)"));
}

TEST(NcclProcesses, TooLittleMemoryAtTheStartIsTold) {
  const Ended ended = run_job("none", 0, "600", "ASHLAR_STANDIN_MIB=0");
  expect_ended_with_error(ended, 20);
  EXPECT_THAT(ended.output, HasSubstr("memory"));
}

TEST(NcclProcesses, NothingIsLeftInSharedMemory) {
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_THAT(entry.path().filename().string(), Not(testing::StartsWith("ashlar_nccl_")));
  }
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s path/to/run_ranks.sh path/to/nccl_fault_program\n", argv[0]);
    return 2;
  }
  run_ranks_script = argv[1];
  fault_program = argv[2];
  return RUN_ALL_TESTS();
}
