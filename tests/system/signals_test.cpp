// TERM, INT and USR1, to one rank, to all, to mpirun and to the script: the step is finished, saved once, and the job
// ends well; going on equals never having stopped.
#include <signal.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

class Signals : public SystemTest {
 protected:
  Flags flags() const {
    return tiny().with(kGrid221).with(
        "--train-iters 100000 --lr-decay-style constant --log-interval 1000 --check-weight-hash");
  }
  // Starts (or goes on with) the job, lets `send` interrupt it behind some steps, and expects the documented end.
  void interrupt(const std::string& signal_name, const std::function<void(Process&)>& send) {
    SCOPED_TRACE(signal_name);
    Process job(pretrain_command(4, flags().with("--save ck --load ck --metrics-file metrics.jsonl")));
    const auto steps_done = [&] { return steps_of_if_there("metrics.jsonl"); };
    const size_t before = steps_done();
    ASSERT_TRUE(job.wait_for([&] { return steps_done() > before + 3; })) << job.out() << job.err();
    send(job);
    const Ended ended = job.wait();
    expect_success(ended);
    const int64_t saved = number_behind(ended.out, "saved iteration ");
    EXPECT_EQ(count(ended.out, "saved iteration "), 1) << ended.out;
    EXPECT_EQ(count(ended.out, "stopped by " + signal_name + " after iteration " + std::to_string(saved) +
                                   "; iteration " + std::to_string(saved) + " is saved in ck"),
              1)
        << ended.out;
    EXPECT_EQ(steps_of("metrics.jsonl").back().step, saved);
    EXPECT_EQ(count(ended.out, ", the fullest\n"), 1) << ended.out;  // memory as planned and measured, of all ranks
  }
  size_t steps_of_if_there(const std::string& name) const {
    return std::filesystem::exists(path(name)) ? steps_of(name).size() : 0;
  }
  void expect_equal_to_uninterrupted() {
    const std::vector<StepLine> steps = steps_of("metrics.jsonl");
    expect_success(
        pretrain(4, flags().with("--metrics-file whole.jsonl --exit-interval " + std::to_string(steps.size()))));
    expect_same_steps(steps, steps_of("whole.jsonl"));
  }
  // The signals that each thread of a process holds back, as the kernel says it in hexadecimal.
  static std::vector<uint64_t> masks_of_threads(pid_t pid) {
    std::vector<uint64_t> masks;
    std::error_code code;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", code)) {
      std::ifstream status(thread.path() / "status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("SigBlk:")) {
          masks.push_back(std::stoull(line.substr(line.find_first_of('\t') + 1), nullptr, 16));
        }
      }
    }
    return masks;
  }
  static bool holds_back(uint64_t mask, int signal) { return (mask >> (signal - 1)) % 2 == 1; }
  static bool main_holds_back(pid_t pid, int signal) {
    const std::vector<uint64_t> masks = masks_of_threads(pid);
    return !masks.empty() && holds_back(masks[0], signal);
  }
  static int num_ranks_that_hold_back(const Process& job, int signal) {
    int found = 0;
    for (const auto& [rank, pid] : job.ranks()) {
      found += main_holds_back(pid, signal) ? 1 : 0;
    }
    return found;
  }
  static void to_rank(Process& job, int rank, int signal) { kill(job.ranks().at(rank), signal); }
  static void to_all_ranks(Process& job, int signal) {
    for (const auto& [rank, pid] : job.ranks()) {
      kill(pid, signal);
    }
  }
};

TEST_F(Signals, ToOneRank) {
  interrupt("SIGTERM", [](Process& job) { to_rank(job, 2, SIGTERM); });
  interrupt("SIGINT", [](Process& job) { to_rank(job, 0, SIGINT); });
  interrupt("SIGUSR1", [](Process& job) { to_rank(job, 3, SIGUSR1); });
  expect_equal_to_uninterrupted();
}

TEST_F(Signals, ToAllRanksAndTwice) {
  interrupt("SIGTERM", [](Process& job) { to_all_ranks(job, SIGTERM); });
  interrupt("SIGUSR1", [](Process& job) {
    to_all_ranks(job, SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    to_all_ranks(job, SIGUSR1);
  });
  interrupt("SIGTERM", [](Process& job) {
    to_rank(job, 1, SIGTERM);
    to_rank(job, 1, SIGTERM);
  });
  // Over and over until the last rank is gone: the end of a run that ended well is none by signal.
  interrupt("SIGUSR1", [](Process& job) {
    while (job.running()) {
      to_all_ranks(job, SIGUSR1);
    }
  });
  expect_equal_to_uninterrupted();
}

TEST_F(Signals, ToMpirunAndToTheScript) {
  interrupt("SIGUSR1", [](Process& job) { kill(job.mpirun(), SIGUSR1); });
  interrupt("SIGUSR1", [](Process& job) {
    kill(job.mpirun(), SIGUSR1);
    kill(job.mpirun(), SIGUSR1);
  });
  // The script hands TERM and INT on as USR1, since mpirun would kill its ranks a second after either.
  interrupt("SIGUSR1", [](Process& job) { kill(job.pid(), SIGTERM); });
  interrupt("SIGUSR1", [](Process& job) { kill(job.pid(), SIGINT); });
  expect_equal_to_uninterrupted();
}

TEST_F(Signals, WithoutSaveNothingIsSavedAndSaidSo) {
  Process job(pretrain_command(1, tiny().with("--train-iters 1000000 --log-interval 1000000")));
  ASSERT_TRUE(job.wait_for_output("iteration        1/"));
  kill(job.pid(), SIGTERM);
  const Ended ended = job.wait();
  expect_success(ended);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("stopped by SIGTERM after iteration"),
                               HasSubstr("nothing was saved: no --save was given")));
}

// Signals that come while oneDNN's generated code runs, on the rank's thread or on an OpenMP one: its stack pointer is
// no stack there. With handlers on those threads about half of these runs ended in a corrupt heap.
TEST_F(Signals, WhileMatrixProductsRun) {
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    Command command = pretrain_command(
        2, Flags("--mock-data --num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 "
                 "--micro-batch-size 4 --global-batch-size 32 --lr 1e-3 --train-iters 100000 --log-interval 1000 "
                 "--save ck --metrics-file metrics.jsonl"));
    command.environment["OMP_NUM_THREADS"] = round % 2 == 0 ? "1" : "2";
    command.environment["OMP_WAIT_POLICY"] = "passive";
    std::filesystem::remove_all(path("metrics.jsonl"));
    Process job(command);
    ASSERT_TRUE(job.wait_for([&] { return steps_of_if_there("metrics.jsonl") > 3; })) << job.out() << job.err();
    std::this_thread::sleep_for(std::chrono::milliseconds(37 * round));
    to_all_ranks(job, SIGUSR1);
    const Ended ended = job.wait();
    expect_success(ended);
    EXPECT_THAT(ended.out, HasSubstr("saved iteration "));
  }
}

// Before the first step too, in MPI_Init as behind it: a signal while the job starts is not lost and kills no rank.
TEST_F(Signals, DuringTheStart) {
  int64_t saved_before = 0;
  const auto stop_at_start = [&](const std::string& signal_name, int signal_of_ranks, int wait_ms,
                                 const std::function<void(Process&)>& send) {
    SCOPED_TRACE(signal_name + " after " + std::to_string(wait_ms) + " ms");
    Process job(pretrain_command(4, flags().with("--save ck --load ck --metrics-file metrics.jsonl")));
    // From here on a rank takes it, be it that its main() has begun or that the script holds the signal back.
    ASSERT_TRUE(job.wait_for([&] { return num_ranks_that_hold_back(job, signal_of_ranks) == 4; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    send(job);
    const Ended ended = job.wait();
    expect_success(ended);
    EXPECT_EQ(count(ended.out, "stopped by " + signal_name), 1) << ended.all();
    const int64_t saved = number_behind(ended.out, "saved iteration ");
    EXPECT_GT(saved, saved_before);
    EXPECT_EQ(count(ended.err, "resumed from ck at iteration " + std::to_string(saved_before)),
              saved_before > 0 ? 1 : 0)
        << ended.err;
    saved_before = saved;
  };
  for (const int wait_ms : {0, 100, 200, 400}) {
    stop_at_start("SIGUSR1", SIGUSR1, wait_ms, [](Process& job) { kill(job.pid(), SIGTERM); });
    stop_at_start("SIGTERM", SIGTERM, wait_ms, [](Process& job) { to_rank(job, 2, SIGTERM); });
  }
  expect_equal_to_uninterrupted();
}

// That no moment of the start is open: MPI's threads, which it makes in MPI_Init, have the mask that main() set before.
TEST_F(Signals, NoThreadOfARankIsOpenToThem) {
  Process job(pretrain_command(2, tiny().with("--train-iters 1000000 --log-interval 1000000")));
  ASSERT_TRUE(job.wait_for_output("iteration        1/"));
  const std::map<int, pid_t> ranks = job.ranks();
  ASSERT_EQ(ranks.size(), 2U);
  for (const auto& [rank, pid] : ranks) {
    const std::vector<uint64_t> masks = masks_of_threads(pid);
    EXPECT_GT(masks.size(), 1U) << "MPI has threads of its own";
    for (const uint64_t mask : masks) {
      for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
        EXPECT_TRUE(holds_back(mask, signal)) << "rank " << rank << ", signal " << signal;
      }
    }
  }
  kill(job.pid(), SIGTERM);
  expect_success(job.wait());
}

// What does not train has nothing to save.
TEST_F(Signals, OtherCommandsDieOfThem) {
  for (const int wait_ms : {0, 10, 20, 40, 80, 500}) {
    Process job(pretrain_command(1, tiny().with("--train-iters 1000000 --verify-layout 1000000")));
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    kill(job.pid(), SIGTERM);
    EXPECT_EQ(job.wait().exit_code, 128 + SIGTERM);
  }
}

// As Open MPI's does that waits for a rank which died inside MPI_Init.
TEST_F(Signals, AnMpirunThatDoesNotListenIsKilledWithItsRanks) {
  Process job(pretrain_command(2, tiny().with("--train-iters 1000000 --log-interval 1000000")));
  ASSERT_TRUE(job.wait_for_output("iteration        1/"));
  kill(job.mpirun(), SIGSTOP);
  while (job.running()) {
    kill(job.pid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const Ended ended = job.wait();
  EXPECT_FALSE(ended.timed_out);
  EXPECT_EQ(ended.exit_code, 128 + SIGKILL);
  EXPECT_EQ(ended.ranks_left, 0);
  EXPECT_EQ(count(ended.err, "mpirun did not end within 5 seconds of TERM"), 1) << ended.err;
}

}  // namespace
}  // namespace ashlar::system_test
