// Sharding among data ranks changes no bit of a run: loss, norm, weights and moments; and checkpoints fit every stage.
#include <gtest/gtest.h>

#include "parallel/train/train_checkpoint.h"
#include "parallel/train/verify_layout.h"
#include "tests/parallel/train/run_trace.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using namespace test;

constexpr int kStages[] = {1};

// Tables of 4176 values, so that tensors span blocks of the norm and data ranks share them.
TrainOptions wide_options() {
  TrainOptions options = tiny_options();
  options.num_layers = 4;
  options.hidden_size = 48;
  options.num_attention_heads = 4;
  options.vocab_size = 87;
  options.make_vocab_size_divisible_by = 1;
  options.seq_length = 8;
  return options;
}

struct Run {
  RunTrace trace;
  LogicalTensors first, second;
};

Run run(TrainOptions options, const GridShape& grid, int zero_stage, int64_t steps) {
  options.zero_stage = zero_stage;
  const TinySource source(options.seq_length, options.vocab_size);
  Run result;
  std::mutex mutex;
  RunHooks hooks;
  hooks.behind_step = [&](Training& training, const StepResult& step) {
    if (step.step < steps) {
      return;
    }
    EXPECT_TRUE(replicas_are_equal(training)) << grid.text();
    LogicalTensors first = gather_logical(training, TensorKind::kFirstMoment);
    LogicalTensors second = gather_logical(training, TensorKind::kSecondMoment);
    const std::lock_guard lock(mutex);
    result.first = std::move(first);
    result.second = std::move(second);
  };
  result.trace = run_steps(options, grid, source, steps, {}, hooks);
  return result;
}

void expect_equal_bits(const TrainOptions& options, const GridShape& grid, int64_t steps) {
  const Run expected = run(options, grid, 0, steps);
  for (const int stage : kStages) {
    const Run sharded = run(options, grid, stage, steps);
    const std::string where = fmt::format("{} {} {} {} bucket {} stage {}", grid.text(), options.pipeline_schedule,
                                          options.untie_embeddings_and_output_weights ? "untied" : "tied",
                                          options.bf16 ? "bf16" : "fp32", options.ddp_bucket_size, stage);
    EXPECT_EQ(sharded.trace.losses, expected.trace.losses) << where;
    EXPECT_EQ(sharded.trace.grad_norms, expected.trace.grad_norms) << where;
    EXPECT_EQ(sharded.trace.weights, expected.trace.weights) << where;
    EXPECT_EQ(sharded.first, expected.first) << where;
    EXPECT_EQ(sharded.second, expected.second) << where;
  }
}

TEST(FewZero, EqualBits) {
  TrainOptions options = wide_options();
  expect_equal_bits(options, {1, 1, 2}, 2);
  options.ddp_bucket_size = 1;  // the smallest buckets
  expect_equal_bits(options, {1, 2, 2}, 2);
}

TEST(Zero, EqualBitsOverTwentySteps) {
  for (const GridShape& grid : {GridShape{1, 1, 2}, GridShape{1, 1, 4}, GridShape{2, 2, 2}}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      for (const bool untied : {false, true}) {
        TrainOptions options = wide_options();
        options.pipeline_schedule = schedule;
        options.untie_embeddings_and_output_weights = untied;
        options.ddp_bucket_size = untied ? 5000 : 40000000;
        expect_equal_bits(options, grid, 20);
      }
    }
  }
}

TEST(Zero, EqualBitsOfUnevenStagesOtherPrecisionAndPlainSgd) {
  TrainOptions options = wide_options();
  options.decoder_first_pipeline_num_layers = 1;
  expect_equal_bits(options, {1, 2, 4}, 5);
  options.bf16 = true;
  expect_equal_bits(options, {2, 2, 2}, 5);
  options.bf16 = false;
  options.decoder_first_pipeline_num_layers.reset();
  options.optimizer = "sgd";
  expect_equal_bits(options, {1, 2, 2}, 5);
  options.bf16 = true;
  expect_equal_bits(options, {1, 1, 2}, 5);
}

// A run that saves at one stage and goes on at another is the run of one stage, to the last bit; on another grid and in
// another precision masters and moments arrive as they were.
void check_checkpoints(int from_stage, int to_stage, bool bf16) {
  TrainOptions options = wide_options();
  options.bf16 = bf16;
  const GridShape grid{1, 2, 2};
  const TinySource source(options.seq_length, options.vocab_size);
  const ScratchDir scratch;
  const std::string directory = scratch / "run";
  uint64_t saved[3] = {}, loaded[3] = {};
  std::vector<double> expected, losses;
  std::mutex mutex;
  const auto hashes = [&](Training& training, uint64_t(&to)[3]) {
    const uint64_t found[3] = {hash_of(gather_logical(training, TensorKind::kValue)),
                               hash_of(gather_logical(training, TensorKind::kFirstMoment)),
                               hash_of(gather_logical(training, TensorKind::kSecondMoment))};
    const std::lock_guard lock(mutex);
    std::copy_n(found, 3, to);
  };
  const auto steps = [&](Training& training, std::vector<double>& to) {
    for (int step = 0; step < 2; ++step) {
      const double loss = train_step(training, source).loss;
      const std::lock_guard lock(mutex);
      if (training.rank.world.rank() == 0) {
        to.push_back(loss);
      }
    }
  };
  options.zero_stage = from_stage;
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, with_grid(options, grid));
    std::vector<double> ignored;
    steps(training, ignored);
    save_training(training, directory, 1);
    hashes(training, saved);
    steps(training, expected);
  });
  options.zero_stage = to_stage;
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, with_grid(options, grid));
    ASSERT_TRUE(load_training(training, directory, 1).has_value());
    EXPECT_TRUE(replicas_are_equal(training));
    hashes(training, loaded);
    steps(training, losses);
  });
  EXPECT_TRUE(std::equal(saved, saved + 3, loaded)) << from_stage << " to " << to_stage;
  EXPECT_EQ(losses, expected) << from_stage << " to " << to_stage;
  options.bf16 = !bf16;
  for (const GridShape& other : {GridShape{2, 1, 2}, GridShape{1, 1, 4}}) {
    std::fill_n(loaded, 3, 0);
    run_ranks(other.num_ranks(), [&](RankContext& rank) {
      Training training(rank, with_grid(options, other));
      ASSERT_TRUE(load_training(training, directory, 1).has_value());
      hashes(training, loaded);
    });
    EXPECT_TRUE(std::equal(saved, saved + 3, loaded)) << from_stage << " to " << to_stage << " on " << other.text();
  }
}

TEST(FewZero, CheckpointsFitEveryStage) {
  check_checkpoints(1, 0, true);
  check_checkpoints(0, 1, true);
}
TEST(Zero, CheckpointsFitEveryStage) {
  for (const bool bf16 : {false, true}) {
    check_checkpoints(0, 1, bf16);
    check_checkpoints(1, 1, bf16);
  }
}

TEST(FewZero, LayoutIsVerified) {
  TrainOptions options = wide_options();
  options.zero_stage = 1;
  const TinySource source(options.seq_length, options.vocab_size);
  run_ranks(4, [&](RankContext& rank) {
    const LayoutReport report = verify_layout(rank, with_grid(options, {1, 2, 2}), source, 2);
    EXPECT_TRUE(report.equal) << report.first_difference;
  });
}

// Bytes of state for each parameter, on a model of which padding is a small part: 6 + 12 / d of 16-bit weights and fp32
// gradients.
TEST(FewZero, BytesPerParameter) {
  TrainOptions options = tiny_options();
  options.num_layers = 2;
  options.hidden_size = 512;
  options.vocab_size = 1024;
  options.untie_embeddings_and_output_weights = true;
  options.bf16 = true;
  options.zero_stage = 1;
  for (const int data : {2, 4, 8}) {
    run_ranks(data, [&](RankContext& rank) {
      const Training training(rank, with_grid(options, {1, 1, data}));
      const auto bytes = static_cast<double>(training.store.value_bytes() + training.store.grad_bytes() +
                                             training.optimizer.state_bytes());
      const double expected = 6 + 12.0 / data;
      const double found = bytes / static_cast<double>(training.store.num_local_elements());
      EXPECT_NEAR(found, expected, 0.02 * expected) << data;
      EXPECT_GE(found, expected) << data;
    });
  }
}

}  // namespace
}  // namespace ashlar
