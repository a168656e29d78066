// Runs with state and weights in files (--offload-optimizer-device, --offload-param-device nvme), and what must hold
// for both alike.
#pragma once

#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <string>

#include "parallel/train/train_checkpoint.h"
#include "runtime/comm/host/status_board.h"
#include "tests/parallel/train/run_trace.h"
#include "tests/support/scratch_dir.h"

namespace ashlar::test {

inline TrainOptions with_state_in_files(TrainOptions options, const ScratchDir& files) {
  options.offload_optimizer_device = "nvme";
  options.nvme_path = files.path().string();
  return options;
}

inline TrainOptions with_weights_in_files(TrainOptions options, const ScratchDir& files) {
  options.zero_stage = 3;
  options.offload_param_device = "nvme";
  return with_state_in_files(options, files);
}

// Of the files of one rank of resolved options.
struct FileBytes {
  int64_t state = 0, weights = 0;
};
inline FileBytes file_bytes(const TrainOptions& options, int world_rank, const ThreadRankOptions& ranks = {}) {
  FileBytes bytes;
  const auto body = [&](RankContext& rank) {
    const Training training(rank, options);
    if (rank.world.rank() == world_rank) {
      bytes.state = training.optimizer.offloaded()->disk_bytes();
      bytes.weights = training.store.value_home() != nullptr ? training.store.value_home()->disk_bytes() : 0;
    }
  };
  run_ranks(static_cast<int>(options.world_size), body, ranks);
  return bytes;
}

// `first` saves in the middle of `whole` and `then` goes on; they differ from it in where numbers lie only.
inline void expect_resume(const TrainOptions& whole, const TrainOptions& first, const TrainOptions& then,
                          const GridShape& grid, int64_t steps_each, const std::string& where) {
  const ScratchDir checkpoints;
  const std::string directory = checkpoints.path().string();
  const TinySource source(whole.seq_length, whole.vocab_size);
  const RunTrace expected = run_steps(whole, grid, source, 2 * steps_each);
  RunHooks save, load;
  save.behind_step = [&](Training& training, const StepResult& step) {
    if (step.step == steps_each) {
      save_training(training, directory, 0, {});
    }
  };
  load.prepare = [&](Training& training) {
    EXPECT_EQ(load_training(training, directory, 0), std::optional<int64_t>(steps_each)) << where;
  };
  run_steps(first, grid, source, steps_each, {}, save);
  const RunTrace rest = run_steps(then, grid, source, steps_each, {}, load);
  EXPECT_EQ(rest.losses, std::vector<double>(expected.losses.begin() + steps_each, expected.losses.end())) << where;
  EXPECT_TRUE(rest.weights == expected.weights) << where;
}

// Rank 1 of two has the disk of `options.test_offload_fault`. The job is ended before anything is unwound: what
// destructors wait for may wait for ranks that nobody has told. Returns what rank 1 was doing.
inline std::string expect_failed_disk_ends_job(const TrainOptions& options, const ThreadRankOptions& ranks = {}) {
  const TrainOptions resolved = with_grid(options, {1, 1, 2});
  const TinySource source(options.seq_length, options.vocab_size);
  std::array<std::string, 2> texts;
  std::string stand;
  const auto body = [&](RankContext& rank) {
    Training training(rank, resolved);
    try {
      for (int step = 0; step < 20; ++step) {
        train_step(training, source);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
      EXPECT_TRUE(rank.recorder.board().job_ended());
      EXPECT_EQ(rank.recorder.board().ended_by(), 1);
      texts[static_cast<size_t>(rank.world.rank())] = error.what();
      if (rank.world.rank() == 1) {
        stand = rank.recorder.board().stand(1);
      }
      throw;
    }
  };
  EXPECT_THROW(run_thread_ranks(2, body, ranks), Error) << options.test_offload_fault;
  using testing::HasSubstr;
  EXPECT_THAT(texts[1], testing::AllOf(HasSubstr("cannot write"), HasSubstr(" at offset "),
                                       HasSubstr(options.nvme_path + "/ashlar_offload_")));
  EXPECT_THAT(texts[0], testing::AllOf(HasSubstr("rank 1"), HasSubstr("cannot write"), HasSubstr(" at offset ")));
  return stand;
}

// The last write of step `bad_step` fails, of a run on one rank that ends there.
inline void expect_failed_last_write_is_said(const TrainOptions& options, int bad_step) {
  const TinySource source(options.seq_length, options.vocab_size);
  run_ranks(1, [&](RankContext& rank) {
    Training training(rank, options);
    for (int step = 1; step < bad_step; ++step) {
      train_step(training, source);
      finish_state(training);
    }
    train_step(training, source);
    EXPECT_THROW(finish_state(training), AgreedError) << options.test_offload_fault;
  });
}

}  // namespace ashlar::test
