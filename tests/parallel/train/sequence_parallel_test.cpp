// --sequence-parallel shares out rows and changes no number: the run is plain tensor parallelism's, what every tensor
// rank holds stays equal on all of them, and everything that may be switched on beside it works as it does without.
#include <gtest/gtest.h>

#include <cmath>

#include "parallel/train/verify_layout.h"
#include "tests/parallel/train/run_trace.h"
#include "tests/support/grad_norm.h"

namespace ashlar {
namespace {

using namespace test;

TinySource source_of(const TrainOptions& options) {
  return TinySource(options.seq_length, options.vocab_size);
}

TrainOptions split(TrainOptions options) {
  options.sequence_parallel = true;
  return options;
}

TrainOptions with_dropout(TrainOptions options, double probability) {
  options.hidden_dropout = options.attention_dropout = probability;
  return options;
}

// Forward passes are equal to the bit, masks among them; backward, sums over rows are cut into parts.
void expect_like_plain(const TrainOptions& plain, const GridShape& grid, int64_t steps) {
  const TinySource source = source_of(plain);
  const RunTrace expected = run_steps(plain, grid, source, steps);
  const RunTrace ours = run_steps(split(plain), grid, source, steps);
  const std::string where = fmt::format("{} {} {} {}", grid.text(), plain.pipeline_schedule, plain.optimizer,
                                        dtype_name(compute_dtype(plain)));
  EXPECT_EQ(ours.losses.front(), expected.losses.front()) << where;
  EXPECT_LE(worst_difference(ours.losses, expected.losses), 1e-5) << where;
  EXPECT_LE(worst_difference(ours.grad_norms, expected.grad_norms), 1e-5) << where;
  if (plain.optimizer == "sgd") {  // Adam divides by the gradient's size, and is judged by its losses
    EXPECT_LE(worst_difference(ours.weights, expected.weights), 1e-5) << where;
  }
}

TEST(FewSequenceParallel, IsPlainTensorParallelism) {
  const TrainOptions sgd = with_sgd(with_dropout(model_xs(), 0.1), 0.1, 0);
  expect_like_plain(sgd, {2, 1, 1}, 3);
  TrainOptions options = sgd;
  options.micro_batch_size = 2;  // parts are half a batch, not half a sample
  options.untie_embeddings_and_output_weights = true;
  options.pipeline_schedule = "gpipe";
  options.zero_stage = 1;
  expect_like_plain(options, {4, 2, 1}, 3);
  options.zero_stage = 0;
  expect_like_plain(options, {2, 1, 2}, 3);
}

TEST(SequenceParallel, IsPlainTensorParallelism) {
  for (const int t : {2, 4}) {
    for (const int p : {1, 2}) {
      for (const int d : {1, 2}) {
        const TrainOptions options = with_dropout(model_s(), 0.1 * (d - 1));
        expect_like_plain(with_sgd(options, 0.1, 0), {t, p, d}, 20);
        expect_like_plain(options, {t, p, d}, 20);
      }
    }
  }
}

// One rank in the place of many, by the whole of the report that users get.
TEST(FewSequenceParallel, VerifyLayoutComparesItWithOneRank) {
  const GridShape grid{2, 2, 1};
  const TrainOptions options = with_grid(split(with_dropout(model_xs(), 0.1)), grid);
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    const LayoutReport report = verify_layout(rank, options, source_of(options), 3);
    EXPECT_TRUE(report.equal) << report.first_difference;
  });
}

// Tensors that every tensor rank holds enter the norm once: sqrt(53440), not 234.06 or 239.73; and their gradients are
// whole on each rank when it is taken.
TEST(FewSequenceParallel, ReplicatedTensorsCountOnceInTheNorm) {
  for (const GridShape& grid : {GridShape{2, 1, 1}, GridShape{4, 1, 1}}) {
    const TrainOptions resolved = with_grid(split(model_s()), grid);
    run_ranks(grid.num_ranks(), [&](RankContext& rank) {
      Training training(rank, resolved);
      for (const ParameterStore::Entry& entry : training.store.entries()) {
        std::fill_n(entry.parameter->grad.as<float>(), entry.parameter->grad.num_elements(), 1.0f);
      }
      EXPECT_DOUBLE_EQ(grad_norm(training.optimizer, *training.stream, 1.0), std::sqrt(53440.0)) << grid.text();
    });
  }
  TrainOptions options = with_sgd(model_s(), 0.5, 0.5);
  const RunTrace r = run_steps(options, {1, 1, 1}, source_of(options), 5);
  for (const int t : {2, 4}) {
    for (const bool splits : {false, true}) {
      options.sequence_parallel = splits;
      const RunTrace ours = run_steps(options, {t, 1, 1}, source_of(options), 5);
      EXPECT_LE(worst_difference(ours.grad_norms, r.grad_norms), 1e-4) << t;
      EXPECT_LE(worst_difference(ours.weights, r.weights), 1e-5) << t;
    }
  }
}

// Norms, biases behind a sum and positions get a part of their gradient from each rank's rows: all ranks must end with
// the same whole. The sum is taken once, before the data ranks', not once for each use.
TEST(FewSequenceParallel, ReplicatedTensorsStayEqual) {
  TrainOptions options = with_sgd(model_s(), 0.1, 0);
  const RunTrace r = run_steps(options, {1, 1, 1}, source_of(options), 10);
  options.sequence_parallel = true;
  for (const GridShape& grid : {GridShape{2, 1, 1}, GridShape{4, 1, 1}, GridShape{2, 1, 2}}) {
    RunHooks hooks;
    hooks.behind_step = [&](Training& training, const StepResult& step) {
      EXPECT_TRUE(replicas_are_equal(training)) << grid.text() << " step " << step.step;
      size_t num_summed = 0;
      for (const ParameterStore::Entry& entry : training.store.entries()) {
        num_summed += entry.parameter->sum_over_tensor ? 1 : 0;
      }
      EXPECT_EQ(num_summed, 4u * 6 + 2 + 1);  // of each layer two norms and two biases, the last norm, the positions
    };
    const RunTrace ours = run_steps(options, grid, source_of(options), 10, {}, hooks);
    for (const auto& [name, values] : ours.weights) {
      if (name.find("ln_") != std::string::npos || name.ends_with("c_proj.bias") || name == "wpe.weight") {
        EXPECT_LE(worst_difference({{name, values}}, {{name, r.weights.at(name)}}), 1e-5) << grid.text() << " " << name;
      }
    }
  }
}

// Every sample is the same, so that data ranks differ by their masks alone.
class OneSample final : public SampleSource {
 public:
  explicit OneSample(const SampleSource& inner) : inner_(inner) {}
  int64_t seq_length() const override { return inner_.seq_length(); }
  int64_t samples_per_epoch() const override { return inner_.samples_per_epoch(); }
  void read(int64_t, std::span<int32_t> tokens, std::span<int32_t> targets, std::span<float> mask) const override {
    inner_.read(0, tokens, targets, mask);
  }
  std::string description() const override { return inner_.description(); }

 private:
  const SampleSource& inner_;
};

TEST(FewSequenceParallel, MasksAreSharedWithinATensorGroupOnly) {
  TrainOptions options = with_sgd(with_dropout(model_s(), 0.1), 0.1, 0);
  options.global_batch_size = 2;
  const TinySource inner = source_of(options);
  const OneSample source(inner);
  std::array<std::array<double, 4>, 2> losses{};
  for (const bool splits : {false, true}) {
    options.sequence_parallel = splits;
    const TrainOptions resolved = with_grid(options, {2, 1, 2});
    run_ranks(4, [&](RankContext& rank) {
      Training training(rank, resolved);
      train_step(training, source);
      const auto at = static_cast<size_t>(training.grid.coordinate().data * 2 + training.grid.coordinate().tensor);
      losses[splits ? 1 : 0][at] = training.executor.read_totals().loss;
    });
  }
  for (const auto& of : losses) {
    EXPECT_EQ(of[0], of[1]);
    EXPECT_EQ(of[2], of[3]);
    EXPECT_NE(of[0], of[2]);
  }
  EXPECT_EQ(losses[0], losses[1]);  // the same masks, whoever holds the rows
}

// Forward passes that run again draw the masks of the first time, between other micro-batches too.
TEST(FewSequenceParallel, RecomputationChangesNoBit) {
  for (const GridShape& grid : {GridShape{2, 1, 1}, GridShape{2, 2, 1}}) {
    for (const bool splits : {false, true}) {
      TrainOptions options = with_dropout(model_xs(), 0.2);
      options.sequence_parallel = splits;
      options.global_batch_size = 4;
      const TinySource source = source_of(options);
      const RunTrace expected = run_steps(options, grid, source, 3);
      TrainOptions other = options;
      for (const std::vector<std::string>& modules :
           {std::vector<std::string>{}, std::vector<std::string>{"core_attn", "layernorm", "mlp_act"}}) {
        other.recompute_granularity = "selective";
        other.recompute_modules = modules;
        EXPECT_TRUE(run_steps(other, grid, source, 3).same_bits(expected)) << grid.text() << " selective " << splits;
      }
      other = options;
      other.recompute_granularity = "full";
      other.recompute_method = "uniform";
      other.recompute_num_layers = 2;
      EXPECT_TRUE(run_steps(other, grid, source, 3).same_bits(expected)) << grid.text() << " full " << splits;
    }
  }
}

// Schedules change no bit, values of 16 bits train like plain ones, and a validation pass finds the same loss.
TEST(FewSequenceParallel, ComposesWithSchedules16BitsAndValidation) {
  const TrainOptions options = split(with_dropout(model_xs(), 0.1));
  const GridShape grid{2, 2, 1};
  const TinySource source = source_of(options);
  TrainOptions gpipe = options;
  gpipe.pipeline_schedule = "gpipe";
  const RunTrace once = run_steps(options, grid, source, 2);
  EXPECT_TRUE(run_steps(gpipe, grid, source, 2).same_bits(once));
  for (const bool fp16 : {false, true}) {
    TrainOptions narrow = with_dropout(model_xs(), 0.1);
    narrow.bf16 = !fp16;
    narrow.fp16 = fp16;
    narrow.loss_scale = fp16 ? 4096 : 0;
    expect_like_plain(narrow, grid, 3);
    expect_like_plain(narrow, {2, 1, 2}, 3);
  }

  std::array<double, 2> validation{};
  for (const bool splits : {false, true}) {
    TrainOptions evaluated = options;
    evaluated.sequence_parallel = splits;
    const TrainOptions resolved = with_grid(evaluated, grid);
    run_ranks(grid.num_ranks(), [&](RankContext& rank) {
      Training training(rank, resolved);
      const double loss = evaluate(training, source, 2);
      if (rank.world.rank() == 0) {
        validation[splits ? 1 : 0] = loss;
      }
    });
  }
  EXPECT_EQ(validation[0], validation[1]);
}

// Parts of gradients meet before the data ranks share them out: behind each micro-batch, or once a step.
TEST(FewSequenceParallel, StagesOfSharedOutStateGiveEqualBits) {
  TrainOptions options = split(with_dropout(model_xs(), 0.1));
  const GridShape grid{2, 1, 2};
  const TinySource source = source_of(options);
  for (const char* reduce : {"step", "micro-batch"}) {
    options.grad_reduce = reduce;
    options.zero_stage = 0;
    const RunTrace whole = run_steps(options, grid, source, 3);
    TrainOptions plain = options;
    plain.sequence_parallel = false;
    EXPECT_LE(worst_difference(whole.grad_norms, run_steps(plain, grid, source, 3).grad_norms), 1e-5) << reduce;
    options.overlap_grad_reduce = true;
    for (const int stage : {1, 2, 3}) {
      options.zero_stage = stage;
      const RunTrace shared = run_steps(options, grid, source, 3);
      EXPECT_EQ(shared.losses, whole.losses) << reduce << " " << stage;
      EXPECT_EQ(shared.grad_norms, whole.grad_norms) << reduce << " " << stage;
      EXPECT_EQ(shared.weights, whole.weights) << reduce << " " << stage;
    }
    options.overlap_grad_reduce = false;
  }
}

// A bad value in the rows of one rank stops all of them, and is found where it is.
TEST(FewSequenceParallel, ABadValueInOneRanksRowsIsFound) {
  const GridShape grid{2, 1, 1};
  const TrainOptions options = with_grid(split(model_xs()), grid);
  const TinySource source = source_of(options);
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, options);
    ExecutorHooks hooks;
    hooks.on_activation = [&](int, int microbatch, int layer, bool is_output, TensorView activation) {
      if (rank.world.rank() == 1 && microbatch == 1 && layer == 2 && !is_output) {
        activation.as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
      }
    };
    training.executor.set_hooks(hooks);
    const uint64_t before = training.sync.values().hash_values();
    EXPECT_FALSE(train_step(training, source).finite);
    EXPECT_EQ(training.sync.values().hash_values(), before);
    const std::string where = find_non_finite(training, source);
    EXPECT_NE(where.find("rank 1 "), std::string::npos) << where;
    EXPECT_NE(where.find("in the input of h.1, micro-batch 1"), std::string::npos) << where;
  });
}

}  // namespace
}  // namespace ashlar
