// Training in bf16 and fp16: weights and activations 16 bits wide, fp32 masters, moments and gradients. One grid
// repeats to the bit whatever the schedule; grids agree to the rounding of 16 bits; checkpoints move between
// precisions.
#include <gtest/gtest.h>

#include "parallel/train/train_checkpoint.h"
#include "parallel/train/verify_layout.h"
#include "tests/parallel/train/run_trace.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using namespace test;

class HalfPrecision : public testing::TestWithParam<const char*> {
 protected:
  bool is_fp16() const { return std::string(GetParam()) == "fp16"; }
  // A scale at which nothing overflows; what happens where it does is fp16_test.cpp's.
  TrainOptions half(TrainOptions options) const {
    options.bf16 = !is_fp16();
    options.fp16 = is_fp16();
    options.initial_loss_scale = is_fp16() ? 65536 : 0;
    return options;
  }
};
class HalfPrecisionGrids : public HalfPrecision {};
const auto kPrecisions = testing::Values("bf16", "fp16");
INSTANTIATE_TEST_SUITE_P(Few, HalfPrecision, kPrecisions, [](const auto& instance) { return instance.param; });
INSTANTIATE_TEST_SUITE_P(All, HalfPrecisionGrids, kPrecisions, [](const auto& instance) { return instance.param; });

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

TEST_P(HalfPrecision, GridsAgreeToRounding) {
  check_grids(half(model_xs()), {{2, 1, 1}, {2, 2, 2}}, 5);
}
// Few elements, a high rate and two steps: single elements that turn around are most of a bias.
TEST_P(HalfPrecision, TinyTensorsAgreeToRounding) {
  TrainOptions options = half(model_xs());
  options.hidden_size = 32;
  options.lr = 1e-3;
  check_grids(options, {{2, 1, 1}}, 2);
}
TEST_P(HalfPrecisionGrids, AgreeToRounding) {
  const TrainOptions options = half(model_xs());
  check_grids(options, {{1, 1, 2}, {1, 2, 1}, {4, 1, 1}, {1, 4, 1}, {1, 1, 8}, {2, 2, 1}, {1, 2, 2}, {2, 1, 2}}, 20);
  check_grids(with_sgd(options, 0.02, 1), {{2, 1, 1}, {1, 2, 2}, {4, 1, 1}, {2, 2, 2}}, 20);
}

TEST_P(HalfPrecision, SchedulesAndRepeatsGiveEqualBits) {
  TrainOptions options = half(model_xs());
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

// bf16 carries 8 bits, so its first loss is that of fp32 to about 2^-9, and fp16's 11 bits give 2^-12; another
// precision would be far closer or off. Gradients are those of the loss, not of the scaled loss.
TEST_P(HalfPrecision, IsFp32ToRoundingAndReallyRounds) {
  const TrainOptions options = model_xs();
  const TinySource source = source_of(options);
  const RunTrace fp32 = run_steps(options, {1, 1, 1}, source, 3);
  RunHooks hooks;
  hooks.prepare = [&](Training& training) {
    EXPECT_EQ(training.store.entries().front().parameter->value.dtype, is_fp16() ? DType::kF16 : DType::kBF16);
    EXPECT_EQ(training.store.entries().front().parameter->grad.dtype, DType::kF32);
    // Masters start at the bits of the fp32 run; values and activations take half the memory.
    EXPECT_GT(training.optimizer.state_bytes(), 2 * training.store.grad_bytes());
    EXPECT_LT(training.store.value_bytes(), training.store.grad_bytes());
  };
  const RunTrace ours = run_steps(half(options), {1, 1, 1}, source, 3, {}, hooks);
  EXPECT_LE(worst_difference(ours.losses, fp32.losses), is_fp16() ? 2.5e-4 : 2e-3);
  EXPECT_GE(worst_difference(ours.losses, fp32.losses), 1e-7);
  EXPECT_LE(worst_difference(ours.grad_norms, fp32.grad_norms), is_fp16() ? 2.5e-3 : 2e-2);
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

TEST_P(HalfPrecision, ResumesBitForBitAndMovesBetweenGridsAndPrecisions) {
  const TrainOptions options = half(model_xs());
  const GridShape grid{2, 2, 1};
  const ScratchDir scratch;
  const std::string start = scratch / "half", fp32 = scratch / "fp32", moved = scratch / "moved";
  const Part whole = run_part(options, grid, "", 4, "");
  run_part(options, grid, "", 2, start);
  const Part resumed = run_part(options, grid, start, 2, "");
  EXPECT_EQ(resumed.trace.losses, (std::vector<double>{whole.trace.losses.end() - 2, whole.trace.losses.end()}));
  EXPECT_EQ(resumed.trace.grad_norms,
            (std::vector<double>{whole.trace.grad_norms.end() - 2, whole.trace.grad_norms.end()}));
  // Masters and moments arrive as they were, on another grid and in another precision, and come back.
  TrainOptions other_half = half(model_xs());
  std::swap(other_half.bf16, other_half.fp16);
  other_half.initial_loss_scale = is_fp16() ? 0 : 65536;
  for (const TrainOptions& other : {options, model_xs(), other_half}) {
    const Part there = run_part(other, {1, 1, 4}, start, 0, moved);
    EXPECT_EQ(there.weights, resumed.weights);
    EXPECT_EQ(there.moments, resumed.moments);
    EXPECT_EQ(run_part(options, grid, moved, 2, "").trace.losses, resumed.trace.losses);
    EXPECT_LE(worst_difference(run_part(other, {1, 1, 4}, start, 2, "").trace.losses, resumed.trace.losses), 5e-3);
  }
  run_part(model_xs(), grid, "", 2, fp32);
  const Part from_fp32 = run_part(options, grid, fp32, 2, "");
  EXPECT_EQ(from_fp32.weights, run_part(model_xs(), grid, fp32, 0, "").weights);
}

// A trained weight in Hugging Face's form is the fp32 master, and comes back as it.
TEST_P(HalfPrecision, HuggingFaceModelsKeepTheMasters) {
  const TrainOptions options = half(model_xs());
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
