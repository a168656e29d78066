// Sharding among data ranks changes no bit of a run: loss, norm, weights and moments; and checkpoints fit every stage.
#include <gtest/gtest.h>

#include "parallel/train/train_checkpoint.h"
#include "parallel/train/verify_layout.h"
#include "tests/parallel/train/run_trace.h"
#include "tests/support/grad_norm.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using namespace test;

constexpr int kStages[] = {1, 2, 3};
constexpr const char* kReductions[] = {"step", "micro-batch"};

struct ZeroRun {
  RunTrace trace;
  LogicalTensors first, second;
  double validation = 0;  // loss behind the last step
};

ZeroRun run(TrainOptions options, const GridShape& grid, int zero_stage, int64_t steps) {
  options.zero_stage = zero_stage;
  const TinySource source(options.seq_length, options.vocab_size);
  ZeroRun result;
  std::mutex mutex;
  RunHooks hooks;
  hooks.behind_step = [&](Training& training, const StepResult& step) {
    if (step.step < steps) {
      return;
    }
    EXPECT_TRUE(replicas_are_equal(training)) << grid.text();
    const double validation = evaluate(training, source, 1);
    LogicalTensors first = gather_logical(training, TensorKind::kFirstMoment);
    LogicalTensors second = gather_logical(training, TensorKind::kSecondMoment);
    const std::lock_guard lock(mutex);
    result.first = std::move(first);
    result.second = std::move(second);
    result.validation = validation;
  };
  result.trace = run_steps(options, grid, source, steps, {}, hooks);
  return result;
}

void expect_equal_bits(const ZeroRun& found, const ZeroRun& expected, const std::string& where) {
  EXPECT_EQ(found.trace.losses, expected.trace.losses) << where;
  EXPECT_EQ(found.trace.grad_norms, expected.trace.grad_norms) << where;
  EXPECT_EQ(found.trace.weights, expected.trace.weights) << where;
  EXPECT_EQ(found.trace.weight_hashes, expected.trace.weight_hashes) << where;
  EXPECT_EQ(found.first, expected.first) << where;
  EXPECT_EQ(found.second, expected.second) << where;
  EXPECT_EQ(found.validation, expected.validation) << where;
}

// The run of stage 0 with --grad-reduce as the options have it, for comparison with others.
ZeroRun expect_equal_bits(const TrainOptions& options, const GridShape& grid, int64_t steps) {
  ZeroRun expected = run(options, grid, 0, steps);
  for (const int stage : kStages) {
    const std::string where =
        fmt::format("{} {} {} {} bucket {} reduce {} recompute {} stage {}", grid.text(), options.pipeline_schedule,
                    options.untie_embeddings_and_output_weights ? "untied" : "tied", options.bf16 ? "bf16" : "fp32",
                    options.ddp_bucket_size, options.grad_reduce, options.recompute_granularity, stage);
    expect_equal_bits(run(options, grid, stage, steps), expected, where);
  }
  return expected;
}

TEST(FewZero, EqualBits) {
  TrainOptions options = model_wide();
  options.grad_reduce = "micro-batch";
  expect_equal_bits(options, {1, 1, 2}, 2);
  options.grad_reduce = "step";
  options.ddp_bucket_size = 1;  // the smallest buckets
  expect_equal_bits(options, {1, 2, 2}, 2);
}

TEST(Zero, EqualBitsOverTwentySteps) {
  // Time goes with the number of ranks, so both kinds of table do not run on every grid.
  for (const auto& [grid, untied] : {std::pair{GridShape{1, 1, 4}, false},
                                     {GridShape{1, 1, 2}, true},
                                     {GridShape{2, 2, 2}, false},
                                     {GridShape{1, 2, 2}, true}}) {
    TrainOptions options = model_wide();
    options.pipeline_schedule = untied ? "1f1b" : "gpipe";
    options.untie_embeddings_and_output_weights = untied;
    options.ddp_bucket_size = untied ? 5000 : 40000000;
    options.grad_reduce = "step";
    const ZeroRun once = expect_equal_bits(options, grid, 20);
    options.grad_reduce = "micro-batch";
    options.pipeline_schedule = untied ? "gpipe" : "1f1b";
    const ZeroRun each = expect_equal_bits(options, grid, 20);
    EXPECT_LE(worst_difference(once.trace.losses, each.trace.losses), 1e-6) << grid.text();
    EXPECT_NE(once.trace.weights, each.trace.weights) << grid.text();  // they round differently
  }
}

TEST(Zero, EqualBitsOfUnevenStagesOtherPrecisionAndPlainSgd) {
  for (const char* reduction : kReductions) {
    TrainOptions options = model_wide();
    options.grad_reduce = reduction;
    options.decoder_first_pipeline_num_layers = 1;
    expect_equal_bits(options, {1, 2, 4}, 5);
    options.untie_embeddings_and_output_weights = true;
    expect_equal_bits(options, {2, 2, 2}, 3);
    options.untie_embeddings_and_output_weights = false;
    options.bf16 = true;
    expect_equal_bits(options, {2, 2, 2}, 5);
    options.bf16 = false;
    options.decoder_first_pipeline_num_layers.reset();
    options.optimizer = "sgd";
    expect_equal_bits(options, {1, 2, 2}, 5);
    options.bf16 = true;
    expect_equal_bits(options, {1, 1, 2}, 5);
  }
}

// Sums in 16 bits: the same at every stage, and near those in fp32.
void check_narrow_gradients(const GridShape& grid, const char* reduction, int64_t steps) {
  TrainOptions options = model_wide();
  options.bf16 = true;
  options.grad_reduce = reduction;
  const ZeroRun wide = run(options, grid, 0, steps);
  options.grad_reduce_in_bf16 = true;
  const ZeroRun narrow = expect_equal_bits(options, grid, steps);
  EXPECT_LE(worst_difference(narrow.trace.losses, wide.trace.losses), 1e-3) << grid.text() << " " << reduction;
  EXPECT_LE(worst_difference(narrow.trace.grad_norms, wide.trace.grad_norms), 2e-2) << grid.text() << " " << reduction;
  EXPECT_NE(narrow.trace.grad_norms, wide.trace.grad_norms);
}

TEST(FewZero, NarrowGradientsGiveEqualBits) {
  check_narrow_gradients({1, 1, 2}, "micro-batch", 2);
  check_narrow_gradients({1, 2, 2}, "step", 2);
}
TEST(Zero, NarrowGradientsGiveEqualBits) {
  for (const GridShape& grid : {GridShape{1, 1, 4}, GridShape{2, 2, 2}}) {
    for (const char* reduction : kReductions) {
      check_narrow_gradients(grid, reduction, 10);
    }
  }
}

// Layers that are run again are gathered again.
void check_recompute(const char* granularity, const char* method, int64_t layers, const GridShape& grid) {
  TrainOptions options = model_wide();
  options.grad_reduce = "micro-batch";
  const ZeroRun kept = run(options, grid, 0, 3);
  options.recompute_granularity = granularity;
  options.recompute_method = method;
  options.recompute_num_layers = layers;
  expect_equal_bits(run(options, grid, 3, 3), kept,
                    fmt::format("{} {} {} {}", granularity, method, layers, grid.text()));
}

TEST(FewZero, EqualBitsOfLayersThatAreRunAgain) {
  check_recompute("full", "uniform", 3, {1, 1, 2});
}
TEST(Zero, EqualBitsOfLayersThatAreRunAgain) {
  for (const GridShape& grid : {GridShape{1, 1, 2}, GridShape{1, 2, 2}}) {
    check_recompute("full", "uniform", 1, grid);
    check_recompute("full", "uniform", 2, grid);
    check_recompute("full", "block", 1, grid);
    check_recompute("selective", "", 1, grid);
  }
}

// What is waited for late is waited for; on host memory nothing is on its way, on GPUs see device_test.cpp.
TEST(FewZero, OverlapChangesNoBit) {
  for (const int stage : {0, 1, 2, 3}) {
    TrainOptions options = model_wide();
    options.grad_reduce = stage == 1 ? "step" : "";
    const GridShape grid{1, 2, 2};
    const ZeroRun expected = run(options, grid, stage, 2);
    options.overlap_grad_reduce = options.overlap_param_gather = true;
    expect_equal_bits(run(options, grid, stage, 2), expected, fmt::format("stage {}", stage));
  }
}

// So is what stays gathered from one pass to the next, or comes for the next, in windows of many passes.
TEST(FewZero, OverlapInLongWindowsChangesNoBit) {
  for (const char* schedule : {"1f1b", "gpipe"}) {
    for (const int64_t layers : {3, 4}) {
      TrainOptions options = model_wide();
      options.num_layers = layers;
      options.pipeline_schedule = schedule;
      options.grad_reduce = "step";
      const ZeroRun expected = run(options, {1, 1, 2}, 0, 2);
      options.overlap_grad_reduce = options.overlap_param_gather = true;
      expect_equal_bits(run(options, {1, 1, 2}, 3, 2), expected, fmt::format("{} {}", schedule, layers));
    }
  }
}

// The sums between groups of data ranks follow those within at once, while the layers before compute.
TEST(FewZero, SumsBetweenInstancesDoNotWaitForTheEnd) {
  TrainOptions options = model_xs();
  options.num_distributed_optimizer_instances = 2;
  options.zero_stage = 1;
  options.grad_reduce = "step";
  options.overlap_grad_reduce = true;
  const TinySource source(options.seq_length, options.vocab_size);
  run_ranks(4, [&](RankContext& rank) {
    Training training(rank, with_grid(options, {1, 1, 4}));
    const auto sums = [&] { return training.grid.replicate().num_ops(OpKind::kAllReduce); };
    const auto last = static_cast<int>(training.options.num_microbatches) - 1;
    const std::vector<FlatLayer>& layers = training.store.layout().layers;
    int64_t expected = 0;
    ExecutorHooks hooks;
    hooks.on_gradients = [&](int, int microbatch, size_t layer) {
      if (microbatch == last) {
        EXPECT_EQ(sums(), expected) << layer;
        expected += static_cast<int64_t>(layers[layer].end_bucket - layers[layer].first_bucket);
      }
    };
    training.executor.set_hooks(hooks);
    train_step(training, source);
    EXPECT_EQ(sums(), expected);
  });
}

// Groups that share out among themselves sum in another order than one group, and alike at every stage.
TEST(Zero, EqualBitsOfInstances) {
  for (const char* reduction : kReductions) {
    TrainOptions options = model_wide();
    options.grad_reduce = reduction;
    const ZeroRun one = run(options, {1, 1, 4}, 1, 5);
    options.num_distributed_optimizer_instances = 2;
    for (const GridShape& grid : {GridShape{1, 1, 4}, GridShape{1, 2, 4}}) {
      const ZeroRun first = run(options, grid, 1, 5);
      expect_equal_bits(run(options, grid, 2, 5), first, "stage 2 " + grid.text());
      expect_equal_bits(run(options, grid, 3, 5), first, "stage 3 " + grid.text());
      EXPECT_LE(worst_difference(first.trace.losses, one.trace.losses), 1e-6) << grid.text();
    }
  }
}

// Case: odd sizes, padding and stride. Every size odd, biases shorter than a shard, three data ranks too.
void check_odd_sizes(int data, int64_t steps) {
  TrainOptions options = with_sgd(tiny_options(), 0.1, 0);
  options.num_layers = 3;
  options.hidden_size = 36;
  options.num_attention_heads = 4;
  options.ffn_hidden_size = 75;
  options.vocab_size = 67;
  options.make_vocab_size_divisible_by = 1;
  options.global_batch_size = 12;
  options.grad_reduce = "micro-batch";
  const TinySource source(options.seq_length, options.vocab_size);
  const RunTrace one = run_steps(options, {1, 1, 1}, source, steps);
  const ZeroRun whole = expect_equal_bits(options, {1, 1, data}, steps);
  EXPECT_LE(worst_difference(whole.trace.losses, one.losses), 1e-5) << data;
  EXPECT_LE(worst_difference(whole.trace.grad_norms, one.grad_norms), 1e-4) << data;
  EXPECT_LE(worst_difference(whole.trace.weights, one.weights), 1e-4) << data;
}

TEST(FewZero, OddSizes) {
  check_odd_sizes(3, 2);
}
TEST(Zero, OddSizes) {
  for (const int data : {2, 3, 4}) {
    check_odd_sizes(data, 10);
  }
}

// Case: what several ranks hold counts once in the norm, also where none holds it whole.
TEST(FewZero, OnesCountOnceInTheNorm) {
  TrainOptions options = model_s();
  for (const int stage : {0, 1, 2, 3}) {
    options.zero_stage = stage;
    for (const GridShape& grid : {GridShape{1, 1, 2}, GridShape{2, 2, 2}}) {
      run_ranks(grid.num_ranks(), [&](RankContext& rank) {
        Training training(rank, with_grid(options, grid));
        for (const FlatPiece& piece : training.store.owned()) {
          const TensorView grad = training.store.grad_of(piece);
          std::fill_n(grad.as<float>(), grad.num_elements(), 1.0f);
        }
        EXPECT_DOUBLE_EQ(grad_norm(training.optimizer, *training.stream, 1.0), std::sqrt(53440.0))
            << grid.text() << " stage " << stage;
      });
    }
  }
}

// A value that is not finite, on one rank: no rank updates, and the search finds it by the same walk over gathered
// layers.
TEST(FewZero, NonFiniteIsFound) {
  for (const int stage : {2, 3}) {
    TrainOptions options = model_xs();
    options.zero_stage = stage;
    const TinySource source(options.seq_length, options.vocab_size);
    run_ranks(4, [&](RankContext& rank) {
      Training training(rank, with_grid(options, {1, 2, 2}));
      EXPECT_TRUE(train_step(training, source).finite);
      const uint64_t before = training.sync.values().hash_values();
      ExecutorHooks hooks;
      hooks.on_activation = [&](int, int microbatch, int layer, bool is_output, TensorView activation) {
        if (rank.world.rank() == 3 && microbatch == 1 && layer == 1 && !is_output) {
          activation.as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
        }
      };
      training.executor.set_hooks(hooks);
      EXPECT_FALSE(train_step(training, source).finite) << "stage " << stage;
      EXPECT_EQ(training.sync.values().hash_values(), before);
      const std::string found = find_non_finite(training, source);
      EXPECT_NE(found.find("first on rank 3"), std::string::npos) << found;
      EXPECT_NE(found.find("micro-batch 1"), std::string::npos) << found;
      // A gradient that is bad once only.
      int times = 0;
      hooks = {};
      hooks.on_gradients = [&](int, int, size_t layer) {
        if (rank.world.rank() == 3 && times++ == 0) {
          training.chunks.front()->layers()[layer]->parameters().front()->grad.as<float>()[0] =
              std::numeric_limits<float>::infinity();
        }
      };
      training.executor.set_hooks(hooks);
      EXPECT_FALSE(train_step(training, source).finite) << "stage " << stage;
      const std::string once = find_non_finite(training, source);
      EXPECT_NE(once.find("every activation and gradient finite; in the first, rank "), std::string::npos) << once;
      training.executor.set_hooks({});
      EXPECT_TRUE(train_step(training, source).finite);
    });
  }
}

// A run that saves at one stage and goes on at another is the run of one stage, to the last bit; on another grid and in
// another precision masters and moments arrive as they were.
void check_checkpoints(int from_stage, int to_stage, bool bf16) {
  TrainOptions options = model_wide();
  options.bf16 = bf16;
  options.grad_reduce = "step";
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
  check_checkpoints(0, 3, true);
}
TEST(Zero, CheckpointsFitEveryStage) {
  for (const bool bf16 : {false, true}) {
    for (const auto& [from, to] : {std::pair{0, 1}, {1, 2}, {2, 3}, {3, 0}, {3, 3}}) {
      check_checkpoints(from, to, bf16);
    }
  }
}

TEST(FewZero, LayoutIsVerified) {
  TrainOptions options = model_wide();
  const TinySource source(options.seq_length, options.vocab_size);
  for (const int stage : kStages) {
    options.zero_stage = stage;
    run_ranks(4, [&](RankContext& rank) {
      const LayoutReport report = verify_layout(rank, with_grid(options, {1, 2, 2}), source, 2);
      EXPECT_TRUE(report.equal) << report.first_difference;
    });
  }
}

// Bytes for each parameter of 16-bit weights, beside what two layers take on their way: with fp32 gradients 18,
// 6 + 12 / d, 2 + 16 / d and 18 / d, with 16-bit ones 16, 4 + 12 / d, 2 + 14 / d and 16 / d. On a model of which
// padding is a small part.
TEST(FewZero, BytesPerParameter) {
  const GptConfig config{.num_layers = 8,
                         .width = 512,
                         .num_heads = 8,
                         .ffn = 2048,
                         .max_positions = 64,
                         .vocab = 1024,
                         .padded_vocab = 1024,
                         .tied = false,
                         .dtype = DType::kBF16};
  const auto chunk = make_stage(config, {8}, 0, 0, 1);
  for (const int data : {2, 4, 8}) {
    const double wide[] = {18, 6 + 12.0 / data, 2 + 16.0 / data, 18.0 / data};
    const double narrow[] = {16, 4 + 12.0 / data, 2 + 14.0 / data, 16.0 / data};
    for (const auto& [stage, in_bf16] :
         {std::pair{0, false}, {1, false}, {2, false}, {3, false}, {0, true}, {1, true}, {2, true}, {3, true}}) {
      const double* expected = in_bf16 ? narrow : wide;
      const Sharding sharding{.zero_stage = stage,
                              .num_shards = stage == 0 ? 1 : data,
                              .bucket_elements = 40000000,
                              .each_microbatch = stage >= 2,
                              .grads_in_bf16 = in_bf16};
      const FlatLayout layout = lay_out_flat(flat_tensors({stage_parameters(*chunk)}), sharding);
      const StoreBytes bytes = store_bytes(layout, config.dtype);
      const int64_t state = Optimizer::state_bytes(layout, config.dtype, OptimizerKind::kAdamW);
      const double found =
          static_cast<double>(bytes.values + bytes.grads + state) / static_cast<double>(count_parameters(config));
      EXPECT_NEAR(found, expected[stage], 0.02 * expected[stage]) << "stage " << stage << " data " << data;
      EXPECT_GE(found, expected[stage]) << "stage " << stage << " data " << data;
      EXPECT_EQ(bytes.gathered > 0, stage == 3);
      EXPECT_EQ(bytes.staged > 0, stage >= 2 || in_bf16);
      EXPECT_LE(bytes.gathered + bytes.staged + bytes.sent, 8 * 2 * 3300000);  // two blocks
    }
  }
}

}  // namespace
}  // namespace ashlar
