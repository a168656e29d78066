// Faults that other runtimes had, as small runs: each kind must be impossible here. R is the same run on one rank.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>

#include "tests/parallel/train/run_trace.h"
#include "tests/support/grad_norm.h"

namespace ashlar {
namespace {

using namespace test;

TinySource source_of(const TrainOptions& options) {
  return TinySource(options.seq_length, options.vocab_size);
}

// Weights of SGD runs agree to rounding; Adam divides by the gradient's size and is judged by its losses.
constexpr double kLoss = 1e-5, kNorm = 1e-4, kWeights = 1e-5;

void expect_equal_to_r(const TrainOptions& options, const GridShape& grid, const SampleSource& source, int64_t steps,
                       const RunTrace& r) {
  const RunTrace ours = run_steps(options, grid, source, steps);
  EXPECT_LE(worst_difference(ours.losses, r.losses), kLoss) << grid.text();
  EXPECT_LE(worst_difference(ours.grad_norms, r.grad_norms), kNorm) << grid.text();
  if (options.optimizer == "sgd") {
    EXPECT_LE(worst_difference(ours.weights, r.weights), kWeights) << grid.text();
  }
}

// The first `counts[sample % counts.size()]` targets of each sample count.
class MaskedSource final : public SampleSource {
 public:
  MaskedSource(const SampleSource& inner, std::vector<int64_t> counts) : inner_(inner), counts_(std::move(counts)) {}
  int64_t seq_length() const override { return inner_.seq_length(); }
  int64_t samples_per_epoch() const override { return inner_.samples_per_epoch(); }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override {
    inner_.read(sample, tokens, targets, mask);
    const auto counted = static_cast<size_t>(counts_[static_cast<size_t>(sample) % counts_.size()]);
    for (size_t at = 0; at < mask.size(); ++at) {
      mask[at] = at < counted ? 1.0f : 0.0f;
    }
  }
  std::string description() const override { return inner_.description(); }

 private:
  const SampleSource& inner_;
  std::vector<int64_t> counts_;
};

// Every counted target weighs the same, however the samples are cut into micro-batches and spread over ranks.
TEST(FewCases, TargetsWeighTheSameInEveryMicrobatch) {
  TrainOptions options = with_sgd(model_s(), 0.1, 0);
  options.global_batch_size = 2;
  options.micro_batch_size = 2;
  const TinySource inner = source_of(options);
  const MaskedSource source(inner, {1, 3});
  RunHooks hooks;
  hooks.behind_step = [](Training&, const StepResult& step) { EXPECT_EQ(step.num_targets, 4); };
  const RunTrace whole = run_steps(options, {1, 1, 1}, source, 3, {}, hooks);
  options.micro_batch_size = 1;
  expect_equal_to_r(options, {1, 1, 1}, source, 3, whole);
  expect_equal_to_r(options, {1, 1, 2}, source, 3, whole);
  expect_equal_to_r(options, {1, 2, 1}, source, 3, whole);

  // The loss is the mean over the four targets: of the means of the two samples, weighted 1 to 3.
  const auto loss_of_sample = [&](int64_t skip) {
    const auto alone = with_grid(
        [&] {
          TrainOptions o = options;
          o.global_batch_size = 1;
          return o;
        }(),
        {1, 1, 1});
    double loss = 0;
    run_ranks(1, [&](RankContext& rank) {
      Training training(rank, alone);
      training.state.consumed_samples = skip;
      loss = train_step(training, source).loss;
    });
    return loss;
  };
  EXPECT_NEAR(whole.losses[0], (loss_of_sample(0) + 3 * loss_of_sample(1)) / 4, 1e-6);
}

TEST(FewCases, SampleWithoutTargetsAndStepWithout) {
  const TrainOptions options = with_sgd(model_xs(), 0.1, 0);
  const TinySource inner = source_of(options);
  const MaskedSource some(inner, {0, 5, 0, 0, 8, 0, 0, 1});  // a data rank of (1,1,8) may have none at all
  const RunTrace r = run_steps(options, {1, 1, 1}, some, 3);
  expect_equal_to_r(options, {1, 1, 8}, some, 3, r);
  const MaskedSource none(inner, {0});
  EXPECT_THROW(run_steps(options, {1, 1, 1}, none, 1), Error);
}

TEST(FewCases, PipelineGradientsAreDividedByTheTargets) {
  TrainOptions options = with_sgd(model_s(), 0.1, 0);
  const TinySource source = source_of(options);
  const RunTrace r = run_steps(options, {1, 1, 1}, source, 3);
  for (const char* schedule : {"1f1b", "gpipe"}) {
    options.pipeline_schedule = schedule;
    const RunTrace ours = run_steps(options, {1, 2, 1}, source, 3);
    EXPECT_NEAR(ours.grad_norms[0] / r.grad_norms[0], 1.0, 1e-6);  // 128 if the sum were differentiated
    EXPECT_LE(worst_difference(ours.weights, r.weights), kWeights);
  }
}

// Tensors that every tensor rank holds in full enter the norm once: sqrt(53440), not 234.06 or 239.73.
TEST(FewCases, ReplicatedTensorsCountOnceInTheNorm) {
  const TrainOptions options = model_s();
  for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{2, 1, 1}, GridShape{4, 1, 1}, GridShape{2, 2, 1},
                                GridShape{1, 1, 2}, GridShape{1, 4, 1}}) {
    const TrainOptions resolved = with_grid(options, grid);
    run_ranks(grid.num_ranks(), [&](RankContext& rank) {
      Training training(rank, resolved);
      for (const ParameterStore::Entry& entry : training.store.entries()) {
        std::fill_n(entry.parameter->grad.as<float>(), entry.parameter->grad.num_elements(), 1.0f);
      }
      EXPECT_DOUBLE_EQ(grad_norm(training.optimizer, *training.stream, 1.0), std::sqrt(53440.0)) << grid.text();
      EXPECT_DOUBLE_EQ(grad_norm(training.optimizer, *training.stream, 0.5), 0.5 * std::sqrt(53440.0)) << grid.text();
    });
  }
}

TEST(Cases, ClippedStepsAreEqualOnEveryTensorSize) {
  const TrainOptions options = with_sgd(model_s(), 0.5, 0.5);
  const TinySource source = source_of(options);
  const RunTrace r = run_steps(options, {1, 1, 1}, source, 5);
  EXPECT_GT(r.grad_norms[0], 0.5);  // clipping did something
  for (const GridShape& grid : {GridShape{2, 1, 1}, GridShape{4, 1, 1}, GridShape{2, 2, 2}}) {
    expect_equal_to_r(options, grid, source, 5, r);
  }
}

// The highest ids, always: with 2 tensor ranks they lie beside the padding.
class HighIdsSource final : public SampleSource {
 public:
  HighIdsSource(int64_t seq, int64_t vocab) : seq_(seq), vocab_(vocab) {}
  int64_t seq_length() const override { return seq_; }
  int64_t samples_per_epoch() const override { return 1 << 20; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override {
    for (size_t at = 0; at < tokens.size(); ++at) {
      const auto id = [&](size_t n) {
        const auto step = static_cast<int64_t>(n * n) + sample;
        return static_cast<int32_t>(step % 2 == 0 ? vocab_ - 1 - step % 5 : step * 7 % vocab_);
      };
      tokens[at] = id(at);
      targets[at] = id(at + 1);
      mask[at] = 1;
    }
  }
  std::string description() const override { return "high ids"; }

 private:
  int64_t seq_;
  int64_t vocab_;
};

void check_padded_vocabulary(int64_t vocab, int64_t multiple, const GridShape& grid, bool untied, int64_t steps) {
  TrainOptions options = model_s();
  options.vocab_size = vocab;
  options.make_vocab_size_divisible_by = multiple;
  options.untie_embeddings_and_output_weights = untied;
  options.init_method_std = 0.002;  // so that the first loss is ln V
  const HighIdsSource source(options.seq_length, vocab);
  const RunTrace r = run_steps(options, {1, 1, 1}, source, steps);
  EXPECT_NEAR(r.losses[0], std::log(static_cast<double>(vocab)), 2e-3);
  RunHooks hooks;
  std::atomic<int64_t> padding_seen = 0;
  hooks.behind_step = [&](Training& training, const StepResult&) {
    for (const ParameterStore::Entry& entry : training.store.entries()) {
      const Parameter& parameter = *entry.parameter;
      const int64_t width = parameter.value.shape[-1];
      for (int64_t at = parameter.shard.num_valid() * width;
           parameter.shard.padded > 0 && at < parameter.value.num_elements() && parameter.shard.split_dim == 0; ++at) {
        ASSERT_EQ(parameter.value.as<float>()[at], 0.0f) << parameter.name << " padding";
        ASSERT_EQ(parameter.grad.as<float>()[at], 0.0f) << parameter.name << " gradient of padding";
        padding_seen += training.rank.world.rank() == training.rank.world.size() - 1 ? 1 : 0;
      }
    }
  };
  const RunTrace ours = run_steps(options, grid, source, steps, {}, hooks);
  EXPECT_GT(padding_seen, 0);
  EXPECT_LE(worst_difference(ours.losses, r.losses), kLoss)
      << "V " << vocab << " multiple " << multiple << " " << grid.text();
  EXPECT_LE(worst_difference(ours.grad_norms, r.grad_norms), kNorm);
}

TEST(FewCases, VocabularyThatDoesNotDivide) {
  check_padded_vocabulary(65, 1, {2, 1, 1}, false, 2);
  check_padded_vocabulary(67, 128, {4, 1, 1}, true, 2);  // two ranks hold padding only
}

TEST(Cases, VocabularyThatDoesNotDivide) {
  for (const int64_t vocab : {65, 67}) {
    for (const int64_t multiple : {1, 128}) {
      for (const GridShape& grid : {GridShape{2, 1, 1}, GridShape{4, 1, 1}, GridShape{2, 2, 1}}) {
        for (const bool untied : {false, true}) {
          check_padded_vocabulary(vocab, multiple, grid, untied, 20);
        }
      }
    }
  }
}

// Both copies of a tied table, bit for bit, at the start and behind every step.
void check_tied_copies(const TrainOptions& options, const GridShape& grid, int64_t steps, const RunTrace& r) {
  const TinySource source = source_of(options);
  RunHooks hooks;
  hooks.prepare = [&](Training& training) {
    std::string mine;
    training.sync.values().for_each_value([&](size_t entry, ConstTensorView value) {
      if (training.store.entries()[entry].parameter->name == "wte.weight") {
        mine += fmt::format("{:016x}", hash_bytes(value.data, value.bytes()));
      }
    });
    int holders = 0;
    std::string first;
    for (const std::string& text : all_gather_text(training.grid.pipeline(), mine)) {
      holders += text.empty() ? 0 : 1;
      first = first.empty() ? text : first;
      EXPECT_TRUE(text.empty() || text == first) << grid.text() << " step " << training.state.iteration;
    }
    EXPECT_EQ(holders, 2);
  };
  hooks.behind_step = [&](Training& training, const StepResult&) { hooks.prepare(training); };
  const RunTrace ours = run_steps(options, grid, source, steps, {}, hooks);
  EXPECT_LE(worst_difference(ours.losses, r.losses), kLoss) << grid.text();
  if (options.optimizer == "sgd") {
    EXPECT_LE(worst_difference(ours.weights, r.weights), kWeights) << grid.text();
  }
}

TEST(FewCases, TiedCopiesStayEqual) {
  TrainOptions options = model_s();
  const RunTrace r = run_steps(options, {1, 1, 1}, source_of(options), 2);
  check_tied_copies(options, {1, 2, 1}, 2, r);
  options.zero_stage = 3;
  check_tied_copies(options, {1, 2, 2}, 2, r);
}
TEST(Cases, TiedCopiesStayEqual) {
  for (TrainOptions options : {model_s(), with_sgd(model_s(), 0.1, 0)}) {
    const RunTrace r = run_steps(options, {1, 1, 1}, source_of(options), 20);
    for (const char* schedule : {"1f1b", "gpipe"}) {
      options.pipeline_schedule = schedule;
      options.zero_stage = 0;
      for (const GridShape& grid : {GridShape{1, 2, 1}, GridShape{1, 4, 1}, GridShape{2, 2, 1}, GridShape{1, 2, 2}}) {
        check_tied_copies(options, grid, 20, r);
      }
      for (const int zero_stage : {1, 2, 3}) {
        options.zero_stage = zero_stage;
        check_tied_copies(options, {1, 2, 2}, 20, r);
        check_tied_copies(options, {1, 4, 2}, 20, r);
      }
    }
  }
}

// Every layer is owned once, whatever the remainder.
void check_uneven_layers(int64_t num_layers, int stages) {
  TrainOptions options = with_sgd(model_xs(), 0.1, 0);
  options.num_layers = num_layers;
  const TinySource source = source_of(options);
  const RunTrace r = run_steps(options, {1, 1, 1}, source, 5);
  const GridShape grid{1, stages, 1};
  RunHooks hooks;
  hooks.prepare = [&](Training& training) {
    std::string mine;
    int64_t counted = 0;
    for (const ParameterStore::Entry& entry : training.store.entries()) {
      counted += entry.counted ? entry.parameter->shard.num_valid_elements() : 0;
      if (entry.parameter->name.ends_with(".ln_1.weight")) {
        mine += entry.parameter->name + ",";
      }
    }
    std::string all, expected;
    for (const std::string& text : all_gather_text(training.rank.world, mine)) {
      EXPECT_FALSE(text.empty());
      all += text;
    }
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      expected += fmt::format("h.{}.ln_1.weight,", layer);
    }
    EXPECT_EQ(all, expected);
    training.grid.world().all_reduce(view_of(&counted, {1}), ReduceOp::kSum, *training.stream).wait_host();
    EXPECT_EQ(counted, count_parameters(training.config));
  };
  const RunTrace ours = run_steps(options, grid, source, 5, {}, hooks);
  EXPECT_LE(worst_difference(ours.losses, r.losses), kLoss) << num_layers << " layers on " << stages;
  EXPECT_LE(worst_difference(ours.weights, r.weights), kWeights) << num_layers << " layers on " << stages;
}

TEST(FewCases, LayersThatDoNotDivide) {
  check_uneven_layers(6, 4);
  check_uneven_layers(5, 2);
  check_uneven_layers(10, 3);
}

// Activations of 512 KB between stages, in lists where both neighbours send before they receive.
TEST(Cases, LargeTransfersDoNotBlockEachOther) {
  TrainOptions options = with_sgd(model_s(), 0.1, 0);
  options.hidden_size = 256;
  options.seq_length = 128;
  options.micro_batch_size = 4;
  options.global_batch_size = 32;
  const TinySource source = source_of(options);
  const RunTrace r = run_steps(options, {1, 1, 1}, source, 1);
  for (const int stages : {2, 4}) {
    for (const Carrier carrier : {Carrier::kRegion, Carrier::kMessages}) {
      const RunTrace ours = run_steps(options, {1, stages, 1}, source, 1, {.carrier = carrier});
      EXPECT_LE(worst_difference(ours.losses, r.losses), kLoss);
      EXPECT_LE(worst_difference(ours.grad_norms, r.grad_norms), kNorm);
    }
  }
}

// With SGD at rate 1 the weights move by min(norm, clip); a clip of 0 switches clipping off.
TEST(FewCases, ClippingIsApplied) {
  for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{2, 2, 1}}) {
    double norm = 0;
    for (const double clip : {0.0, 1.0, 0.01, 1000.0}) {
      const TrainOptions options = with_sgd(model_s(), 1, clip);
      const TinySource source = source_of(options);
      LogicalTensors before;
      std::mutex mutex;
      RunHooks hooks;
      hooks.prepare = [&](Training& training) {
        LogicalTensors now = gather_logical(training, TensorKind::kValue);
        const std::lock_guard lock(mutex);
        before = std::move(now);
      };
      const RunTrace run = run_steps(options, grid, source, 1, {}, hooks);
      double moved = 0;
      for (const auto& [name, values] : run.weights) {
        for (size_t at = 0; at < values.size(); ++at) {
          moved += std::pow(static_cast<double>(values[at]) - static_cast<double>(before.at(name)[at]), 2);
        }
      }
      norm = run.grad_norms[0];
      const double expected = clip == 0 ? norm : std::min(norm, clip);
      EXPECT_NEAR(std::sqrt(moved), expected, 1e-4 * expected) << grid.text() << " clip " << clip;
    }
    EXPECT_GT(norm, 1.0);
    EXPECT_LT(norm, 1000.0);
  }
}

// The default given explicitly and left out are the same run.
TEST(FewCases, ExplicitDefaultsChangeNothing) {
  const TrainOptions left_out = model_xs();
  TrainOptions given = left_out;
  given.clip_grad = 1.0;
  given.adam_beta1 = 0.9;
  given.adam_beta2 = 0.999;
  given.weight_decay = 0.01;
  given.ffn_hidden_size = 4 * given.hidden_size;
  const TinySource source = source_of(left_out);
  EXPECT_TRUE(run_steps(given, {1, 1, 1}, source, 3).same_bits(run_steps(left_out, {1, 1, 1}, source, 3)));
}

// A bad value on one rank stops all of them at the same step, with the weights of the step before; in fp16 too, where
// only gradients may overflow.
TEST(FewCases, NonFiniteValueOnOneRankStopsAll) {
  const GridShape grid{2, 2, 1};
  for (const std::string precision : {"fp32", "bf16", "fp16"}) {
    TrainOptions wanted = model_xs();
    wanted.bf16 = precision == "bf16";
    wanted.fp16 = precision == "fp16";
    wanted.loss_scale = precision == "fp16" ? 1024 : 0;
    const TrainOptions options = with_grid(wanted, grid);
    const TinySource source = source_of(options);
    for (int bad_rank = 0; bad_rank < grid.num_ranks(); ++bad_rank) {
      run_ranks(grid.num_ranks(), [&](RankContext& rank) {
        Training training(rank, options);
        EXPECT_TRUE(train_step(training, source).finite);
        const uint64_t before = training.sync.values().hash_values();
        ExecutorHooks hooks;
        hooks.on_activation = [&](int, int microbatch, int layer, bool is_output, TensorView activation) {
          if (rank.world.rank() == bad_rank && microbatch == 1 && layer == 1 && !is_output) {
            std::memset(activation.data + 3 * dtype_bytes(activation.dtype), 0xff, dtype_bytes(activation.dtype));
          }
        };
        training.executor.set_hooks(hooks);
        const StepResult step = train_step(training, source);
        EXPECT_FALSE(step.finite) << "rank " << rank.world.rank();
        EXPECT_EQ(step.outcome, StepOutcome::kNotFinite) << precision;
        EXPECT_EQ(training.state.num_nan, 1);
        EXPECT_EQ(training.sync.values().hash_values(), before);
        EXPECT_EQ(training.state.iteration, 1);
        EXPECT_EQ(training.optimizer.num_updates(), 1);
        training.executor.set_hooks({});
        EXPECT_TRUE(train_step(training, source).finite);
        EXPECT_EQ(training.state.iteration, 2);
      });
    }
  }
}

}  // namespace
}  // namespace ashlar
