// Training in bf16: weights and activations 16 bits wide, fp32 masters, moments and gradients. One grid repeats to the
// bit whatever the schedule; grids agree to the rounding of bf16; checkpoints move between fp32 and bf16 runs.
#include <gtest/gtest.h>

#include "parallel/train/train_checkpoint.h"
#include "parallel/train/verify_layout.h"
#include "tests/parallel/train/run_trace.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using namespace test;

TrainOptions in_bf16(TrainOptions options) {
  options.bf16 = true;
  return options;
}

TinySource source_of(const TrainOptions& options) {
  return TinySource(options.seq_length, options.vocab_size);
}

void check_grids(const TrainOptions& options, const std::vector<GridShape>& grids, int64_t steps) {
  const TinySource source = source_of(options);
  for (const GridShape& grid : grids) {
    run_ranks(grid.num_ranks(), [&](RankContext& rank) {
      const LayoutReport report = verify_layout(rank, with_grid(options, grid), source, steps);
      EXPECT_TRUE(report.equal) << grid.text() << ": " << report.first_difference;
      if (rank.world.rank() == 0) {
        testing::Test::RecordProperty(grid.text(),
                                      fmt::format("loss {:.1e} norm {:.1e} weights {:.1e}", report.worst_loss,
                                                  report.worst_grad_norm, report.worst_weights));
      }
    });
  }
}

TEST(FewBf16, GridsAgreeToRounding) {
  check_grids(in_bf16(model_xs()), {{2, 1, 1}, {2, 2, 2}}, 5);
}
// Few elements, a high rate and two steps: single elements that turn around are most of a bias.
TEST(FewBf16, TinyTensorsAgreeToRounding) {
  TrainOptions options = in_bf16(model_xs());
  options.hidden_size = 32;
  options.lr = 1e-3;
  check_grids(options, {{2, 1, 1}}, 2);
}
TEST(Bf16, GridsAgreeToRounding) {
  const TrainOptions options = in_bf16(model_xs());
  check_grids(options, {{1, 1, 2}, {1, 2, 1}, {4, 1, 1}, {1, 4, 1}, {1, 1, 8}, {2, 2, 1}, {1, 2, 2}, {2, 1, 2}}, 20);
  check_grids(with_sgd(options, 0.02, 1), {{2, 1, 1}, {1, 2, 2}, {4, 1, 1}, {2, 2, 2}}, 20);
}

TEST(FewBf16, SchedulesAndRepeatsGiveEqualBits) {
  TrainOptions options = in_bf16(model_xs());
  const TinySource source = source_of(options);
  for (const GridShape& grid : {GridShape{2, 2, 1}, GridShape{1, 4, 1}}) {
    options.pipeline_schedule = "1f1b";
    const RunTrace once = run_steps(options, grid, source, 3);
    EXPECT_TRUE(run_steps(options, grid, source, 3).same_bits(once)) << grid.text();
    EXPECT_TRUE(run_steps(options, grid, source, 3, {.queued_streams = true}).same_bits(once)) << grid.text();
    options.pipeline_schedule = "gpipe";
    EXPECT_TRUE(run_steps(options, grid, source, 3).same_bits(once)) << grid.text();
  }
}

// bf16 carries 8 bits, so its first loss is that of fp32 to about 2^-9; another precision would be far closer or off.
TEST(FewBf16, IsFp32ToRoundingAndReallyRounds) {
  const TrainOptions options = model_xs();
  const TinySource source = source_of(options);
  const RunTrace fp32 = run_steps(options, {1, 1, 1}, source, 3);
  RunHooks hooks;
  hooks.prepare = [](Training& training) {
    EXPECT_EQ(training.store.entries().front().parameter->value.dtype, DType::kBF16);
    EXPECT_EQ(training.store.entries().front().parameter->grad.dtype, DType::kF32);
    // Masters start at the bits of the fp32 run; values and activations take half the memory.
    EXPECT_GT(training.optimizer.state_bytes(), 2 * training.store.grad_bytes());
    EXPECT_LT(training.store.value_bytes(), training.store.grad_bytes());
  };
  const RunTrace bf16 = run_steps(in_bf16(options), {1, 1, 1}, source, 3, {}, hooks);
  EXPECT_LE(worst_difference(bf16.losses, fp32.losses), 2e-3);
  EXPECT_GE(worst_difference(bf16.losses, fp32.losses), 1e-7);
}

struct Part {
  RunTrace trace;
  uint64_t weights = 0, moments = 0;  // where the part began
};

Part run_part(const TrainOptions& options, const GridShape& grid, const std::string& load, int64_t steps,
              const std::string& save) {
  Part part;
  const TinySource source = source_of(options);
  std::mutex mutex;
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, with_grid(options, grid));
    if (!load.empty()) {
      load_training(training, load, 1);
      EXPECT_TRUE(replicas_are_equal(training)) << grid.text();
    }
    const uint64_t weights = hash_of(gather_logical(training, TensorKind::kValue));
    const uint64_t moments = hash_of(gather_logical(training, TensorKind::kSecondMoment));
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult result = train_step(training, source);
      if (rank.world.rank() == 0) {
        part.trace.losses.push_back(result.loss);
        part.trace.grad_norms.push_back(result.grad_norm);
      }
    }
    if (!save.empty()) {
      save_training(training, save, 1);
    }
    const std::lock_guard lock(mutex);
    part.weights = weights;
    part.moments = moments;
  });
  return part;
}

TEST(FewBf16, ResumesBitForBitAndMovesBetweenGridsAndPrecisions) {
  const TrainOptions options = in_bf16(model_xs());
  const GridShape grid{2, 2, 1};
  const ScratchDir scratch;
  const std::string bf16 = scratch / "bf16", fp32 = scratch / "fp32", moved = scratch / "moved";
  const Part whole = run_part(options, grid, "", 4, "");
  run_part(options, grid, "", 2, bf16);
  const Part resumed = run_part(options, grid, bf16, 2, "");
  EXPECT_EQ(resumed.trace.losses, (std::vector<double>{whole.trace.losses.end() - 2, whole.trace.losses.end()}));
  EXPECT_EQ(resumed.trace.grad_norms,
            (std::vector<double>{whole.trace.grad_norms.end() - 2, whole.trace.grad_norms.end()}));
  // Masters and moments arrive as they were, on another grid and in another precision, and come back.
  for (const TrainOptions& other : {options, model_xs()}) {
    const Part there = run_part(other, {1, 1, 4}, bf16, 0, moved);
    EXPECT_EQ(there.weights, resumed.weights);
    EXPECT_EQ(there.moments, resumed.moments);
    EXPECT_EQ(run_part(options, grid, moved, 2, "").trace.losses, resumed.trace.losses);
    EXPECT_LE(worst_difference(run_part(other, {1, 1, 4}, bf16, 2, "").trace.losses, resumed.trace.losses), 5e-3);
  }
  run_part(model_xs(), grid, "", 2, fp32);
  const Part from_fp32 = run_part(options, grid, fp32, 2, "");
  EXPECT_EQ(from_fp32.weights, run_part(model_xs(), grid, fp32, 0, "").weights);
}

// A trained weight in Hugging Face's form is the fp32 master, and comes back as it.
TEST(FewBf16, HuggingFaceModelsKeepTheMasters) {
  const TrainOptions options = in_bf16(model_xs());
  const ScratchDir scratch;
  const std::string directory = scratch / "hf";
  const TinySource source = source_of(options);
  run_ranks(2, [&](RankContext& rank) {
    Training training(rank, with_grid(options, {2, 1, 1}));
    train_step(training, source);
    save_hf(rank, directory, hf_config(training.config), checkpoint_slices(training, false));
    Training loaded(rank, with_grid(options, {2, 1, 1}));
    load_hf_weights(loaded, directory);
    EXPECT_EQ(hash_of(gather_logical(loaded, TensorKind::kValue)),
              hash_of(gather_logical(training, TensorKind::kValue)));
    EXPECT_EQ(loaded.sync.values().hash_values(), training.sync.values().hash_values());
  });
}

}  // namespace
}  // namespace ashlar
