// Processes in which one rank sleeps, dies or errs: the job ends by itself, with an exit code that says so and a report
// that names the right rank. Started with the paths of run_ranks.sh and of the fault program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string run_ranks_script;
std::string fault_program;

struct Ended {
  int exit_code = -1;
  std::string output;
};

Ended run(const std::string& command) {
  Ended ended;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t count = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ended.output.append(buffer.data(), count);
  }
  const int status = pclose(pipe);
  ended.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

// 124 is the exit code of `timeout`: the job hung.
Ended run_job(int num_ranks, const std::string& fault, int faulty_rank, const std::string& timeout_seconds,
              const std::string& environment = "") {
  return run("env RUN_RANKS_TIMEOUT=30 " + environment + " " + run_ranks_script + " " + std::to_string(num_ranks) +
             " " + fault_program + " " + fault + " " + std::to_string(faulty_rank) + " " + timeout_seconds);
}

void expect_ended_with_error(const Ended& ended) {
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_NE(ended.exit_code, 124) << "the job hung: " << ended.output;
}

TEST(ProcessFaults, NoFaultEndsWell) {
  EXPECT_EQ(run_job(2, "none", 0, "20").exit_code, 0);
  EXPECT_EQ(run_job(2, "none", 0, "20", "ASHLAR_MPI_TRANSPORT=p2p").exit_code, 0);
}

TEST(ProcessFaults, SleepingRankIsNamed) {
  for (const char* transport : {"shared", "p2p"}) {
    const Ended ended = run_job(4, "sleep", 3, "2", std::string("ASHLAR_MPI_TRANSPORT=") + transport);
    expect_ended_with_error(ended);
    EXPECT_THAT(ended.output,
                AllOf(HasSubstr("barrier #3 of group \"world\": rank 3 never entered it; entered: 0, 1, 2"),
                      HasSubstr("missing rank 3 (t1 p1 d0): step 4, action 1F2, micro-batch 2"),
                      HasSubstr("last finished in \"world\": all_reduce #2"), HasSubstr("flight recorder of rank")));
    for (const char* rank : {"rank 0 (t0 p0 d0): ", "rank 1 (t1 p0 d0): ", "rank 2 (t0 p1 d0): "}) {
      EXPECT_THAT(ended.output, HasSubstr(rank));
    }
  }
}

TEST(ProcessFaults, ReceiveWithoutSendIsNamed) {
  const Ended exchange = run_job(4, "no_send", 0, "2");
  expect_ended_with_error(exchange);
  EXPECT_THAT(exchange.output, HasSubstr("exchange #1 of 200000 bytes fp32 of group \"pipeline\": rank "));
  EXPECT_THAT(exchange.output, HasSubstr("never sent what is to be received from it (200000 bytes, tag 0)"));
}

TEST(ProcessFaults, DifferentOperationsAreNamed) {
  const Ended ended = run_job(4, "other_op", 1, "20");
  expect_ended_with_error(ended);
  EXPECT_THAT(ended.output, AllOf(HasSubstr("operation #3 of group \"world\" is not the same on all members"),
                                  HasSubstr("rank 1 calls broadcast(root 0) #3 of 200000 bytes fp32")));
}

TEST(ProcessFaults, KilledRankEndsTheJobLongBeforeTheTimeout) {
  const Ended ended = run_job(4, "kill", 2, "600");
  expect_ended_with_error(ended);
}

TEST(ProcessFaults, RankThatLeavesEndsTheJob) {
  const Ended ended = run_job(2, "exit", 1, "600");
  expect_ended_with_error(ended);
}

TEST(ProcessFaults, ErrorOfOneRankIsSaidAndItsCodeIsTheJobs) {
  const Ended ended = run_job(4, "data", 1, "600");
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_THAT(ended.output, HasSubstr("[rank 1] [error] train.bin: truncated"));
  EXPECT_THAT(ended.output, Not(HasSubstr("flight recorder")));
}

TEST(ProcessFaults, AgreedErrorIsSaidOnce) {
  const Ended one = run_job(4, "agree", 2, "20");
  EXPECT_EQ(one.exit_code, 4);
  EXPECT_THAT(one.output, HasSubstr("[rank 0] [error] rank 2: slice 3 is missing"));
  EXPECT_THAT(one.output, Not(HasSubstr("[rank 2]")));
  const Ended all = run_job(4, "agree_all", 0, "20");
  EXPECT_EQ(all.exit_code, 2);
  EXPECT_THAT(all.output, HasSubstr("[rank 0] [error] --micro-batch-size 0"));
  EXPECT_THAT(all.output, Not(HasSubstr("[rank 1]")));
}

TEST(ProcessFaults, LonelyProcessesAreRefused) {
  for (const char* environment : {"SLURM_NTASKS=2 SLURM_PROCID=1", "OMPI_COMM_WORLD_SIZE=2", "PMI_SIZE=2"}) {
    const Ended ended = run(std::string("timeout 30 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ") +
                            environment + " " + fault_program + " none");
    EXPECT_EQ(ended.exit_code, 2) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(std::string(environment).substr(0, std::string(environment).find(' '))));
    EXPECT_THAT(ended.output, HasSubstr("announces 2 processes, but this process found 1"));
  }
}

TEST(ProcessFaults, WithoutLauncherOneRankStarts) {
  EXPECT_EQ(run("timeout 30 " + fault_program + " none").exit_code, 0);
  EXPECT_EQ(run("timeout 30 " + fault_program + " data 0").exit_code, 3);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s path/to/run_ranks.sh path/to/comm_fault_program\n", argv[0]);
    return 2;
  }
  run_ranks_script = argv[1];
  fault_program = argv[2];
  return RUN_ALL_TESTS();
}
