// TERM, INT and USR1, to one rank, to all, to mpirun and to the script: the step is finished, saved once, and the job
// ends well; going on equals never having stopped.
#include <signal.h>

#include <chrono>
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

// Before the first step too: a signal while the job starts is not lost and does not kill it.
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

TEST_F(Signals, DuringTheStart) {
  for (int wait_ms = 0; wait_ms <= 40; wait_ms += 8) {
    Process job(pretrain_command(4, flags().with("--save ck")));
    ASSERT_TRUE(job.wait_for([&] { return job.ranks().size() == 4; }));
    ASSERT_TRUE(job.wait_for_output("grid: tensor 2"));
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    to_rank(job, 2, SIGTERM);
    const Ended ended = job.wait();
    expect_success(ended);
    EXPECT_EQ(count(ended.out, "stopped by SIGTERM"), 1) << ended.out;
  }
}

}  // namespace
}  // namespace ashlar::system_test
