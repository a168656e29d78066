// Jobs killed at any moment, and disks that fill up: the last whole checkpoint stays, is found, and goes on bit for
// bit.
#include <signal.h>
#include <sys/mount.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

namespace fs = std::filesystem;

class InterruptedSave : public SystemTest {
 protected:
  // 2 steps saved in ck by an undisturbed job; whole.jsonl holds the 6 steps of one that never stopped.
  void save_two_steps(int num_ranks, const Flags& flags) {
    expect_success(pretrain(num_ranks, flags.with("--metrics-file whole.jsonl")));
    expect_success(pretrain(num_ranks, flags.with("--save ck --exit-interval 2 --metrics-file metrics.jsonl")));
    good_ = snapshot("ck");
  }
  // Nothing of the old checkpoint was touched (a killed save may leave files of its own).
  void expect_old_checkpoint_whole() {
    const Snapshot now = snapshot("ck");
    for (const auto& [name, bytes] : good_) {
      EXPECT_TRUE(now.contains(name) && now.at(name) == bytes) << name;
    }
    EXPECT_FALSE(now.contains("iter_0000004"));
  }
  void expect_resume_equals_whole(int num_ranks, const Flags& flags) {
    const Ended ended = pretrain(num_ranks, flags.with("--load ck --save ck --metrics-file metrics.jsonl"));
    expect_success(ended);
    EXPECT_THAT(ended.err, HasSubstr("resumed from ck at iteration 2"));
    ASSERT_EQ(steps_of("metrics.jsonl").size(), 6u);
    expect_same_steps(steps_of("metrics.jsonl"), steps_of("whole.jsonl"));
    for (const auto& [name, bytes] : snapshot("ck")) {
      EXPECT_THAT(name, Not(AnyOf(HasSubstr(".tmp"), HasSubstr(".replaced")))) << "left over";
    }
  }

  Snapshot good_;
};

// SIGKILL to one rank, or to all of them and mpirun, at random moments of a job that saves after every step (most of
// its time is saving). Each round goes on where the last one was killed.
class KillLoop : public InterruptedSave {
 protected:
  void run_rounds(int num_rounds) {
    const Flags flags = tiny()
                            .with("--pipeline-model-parallel-size 2")
                            .with("--train-iters 100000 --log-interval 1000 --save ck --load ck --save-interval 1")
                            .with("--metrics-file metrics.jsonl --lr-decay-style constant --check-weight-hash");
    static unsigned seed = 20250727;  // another for each repetition
    std::mt19937 random(seed++);
    int64_t last_said = 0;  // what the job before printed as saved
    for (int round = 0; round < num_rounds; ++round) {
      SCOPED_TRACE(round);
      Process job(pretrain_command(4, flags));
      ASSERT_TRUE(job.wait_for([&] { return count(job.out(), "saved iteration") >= 2; })) << job.out() << job.err();
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 400));
      const std::map<int, pid_t> ranks = job.ranks();
      ASSERT_EQ(ranks.size(), 4u);
      if (round % 2 == 0) {
        kill(ranks.at(static_cast<int>(random() % 4)), SIGKILL);
      } else {
        job.signal_all(SIGKILL);
      }
      const Ended ended = job.wait();
      expect_bad_end(ended);
      if (round > 0) {
        // The mark moves before the line is printed, so the set found may be one step newer than what was said.
        const int64_t found = number_behind(ended.err, "resumed from ck at iteration ");
        EXPECT_TRUE(found == last_said || found == last_said + 1) << "found " << found << ", said " << last_said;
      }
      last_said = number_behind(ended.out, "saved iteration ");
    }
    const std::vector<StepLine> steps = steps_of("metrics.jsonl");
    ASSERT_GT(steps.size(), static_cast<size_t>(num_rounds));
    expect_success(
        pretrain(4, flags.without("save")
                        .without("load")
                        .without("save-interval")
                        .with("--metrics-file whole.jsonl --exit-interval " + std::to_string(steps.size()))));
    expect_same_steps(steps, steps_of("whole.jsonl"));
  }
};

TEST_F(KillLoop, TenRounds) {
  run_rounds(10);
}

// The disk of one rank fills up, or its process dies, behind k bytes of its file, for k over the whole save.
TEST_F(InterruptedSave, WriteFaultBehindKBytes) {
  const Flags flags = tiny().with("--pipeline-model-parallel-size 2 --check-weight-hash");
  save_two_steps(2, flags);
  const Flags faulty = flags.with("--load ck --save ck --save-interval 4");
  const int64_t file_bytes = static_cast<int64_t>(fs::file_size(path("ck/iter_0000002/rank_00000.safetensors")));
  for (const int64_t bytes : {int64_t{0}, file_bytes / 3, file_bytes + 2}) {
    for (const std::string kill : {"", ",kill=1"}) {
      const std::string fault = "rank=" + std::string(bytes % 2 == 0 ? "0" : "1") + ",bytes=" + std::to_string(bytes);
      SCOPED_TRACE(fault + kill);
      const Ended ended = pretrain(2, faulty.with("--test-write-fault " + fault + kill));
      expect_bad_end(ended);
      if (kill.empty()) {
        expect_error(ended, ErrorCode::kCheckpoint, {" ck", "No space left on device", "needed", "free"});
        EXPECT_EQ(snapshot("ck"), good_) << "something was left behind";
      }
      expect_old_checkpoint_whole();
    }
  }
  expect_resume_equals_whole(2, flags);
}

// A disk that is really full, where we may mount a small file system in memory (root may).
TEST_F(InterruptedSave, FullDisk) {
  const Flags flags = tiny().with(kGrid212);
  fs::create_directories(path("ck"));
  if (mount("tmpfs", path("ck").c_str(), "tmpfs", 0, "size=1200k") != 0) {
    GTEST_SKIP() << "mounting needs root";
  }
  save_two_steps(2, flags);
  const Ended ended = pretrain(2, flags.with("--load ck --save ck"));
  expect_error(ended, ErrorCode::kCheckpoint,
               {"[warning] --save ck: a checkpoint needs", "cannot write ck/.iter_0000006.tmp/rank_0000",
                "No space left on device; needed", "bytes, free "});
  EXPECT_EQ(snapshot("ck"), good_);
  umount(path("ck").c_str());
  EXPECT_TRUE(snapshot("ck").empty());
}

// Files that may not grow beyond a limit (ulimit -f) fail in the same way, with EFBIG.
TEST_F(InterruptedSave, LimitedFileSize) {
  save_two_steps(1, tiny());
  Command limited = pretrain_command(1, tiny().with("--load ck --save ck"));
  limited.limit_file_bytes = true;
  limited.max_file_bytes = 100000;
  expect_error(run_command(limited), ErrorCode::kCheckpoint,
               {"cannot write ck/.iter_0000006.tmp/rank_00000.safetensors: File too large", "ulimit -f", "needed "});
  EXPECT_EQ(snapshot("ck"), good_);
  expect_resume_equals_whole(1, tiny());
}

}  // namespace
}  // namespace ashlar::system_test
