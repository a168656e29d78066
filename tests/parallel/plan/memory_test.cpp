// What the plan says and what a run has allocated before its first step are one number, by kind and to the byte.
#include "parallel/plan/memory.h"

#include <gtest/gtest.h>

#include "parallel/train/run_shape_of.h"
#include "tests/parallel/plan/planned_peak.h"
#include "tests/parallel/train/run_trace.h"

namespace ashlar {
namespace {

using namespace test;

void expect_plan_is_allocated(const TrainOptions& options, const GridShape& grid) {
  const TrainOptions resolved = with_grid(options, grid);
  const std::vector<RankMemory> plan = plan_memory(run_shape_of(resolved, {}));
  ASSERT_EQ(plan.size(), static_cast<size_t>(grid.pipeline));
  const TinySource source(options.seq_length, options.vocab_size);
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, resolved);
    const std::string where =
        fmt::format("{} {} {} {} micro-batch {} rank {}", grid.text(), options.pipeline_schedule,
                    options.untie_embeddings_and_output_weights ? "untied" : "tied", dtype_name(training.config.dtype),
                    options.micro_batch_size, rank.world.rank());
    train_step(training, source);
    evaluate(training, source, 1);
    expect_peak_is_planned(plan[static_cast<size_t>(training.grid.coordinate().pipeline)], rank.device, where);
  });
}

TEST(FewPlannedMemory, IsWhatARunAllocates) {
  TrainOptions options = model_xs();
  expect_plan_is_allocated(options, {1, 1, 1});
  options.pipeline_schedule = "gpipe";
  options.micro_batch_size = 2;
  expect_plan_is_allocated(options, {2, 2, 1});
  options.untie_embeddings_and_output_weights = true;
  options.bf16 = true;
  expect_plan_is_allocated(options, {1, 2, 2});
  for (const int stage : {1, 2, 3}) {
    options.zero_stage = stage;
    expect_plan_is_allocated(options, {1, 2, 2});
  }
  options.grad_reduce_in_bf16 = true;
  expect_plan_is_allocated(options, {1, 2, 2});
  options.grad_reduce_in_bf16 = false;
  options.zero_stage = 1;
  options.hidden_dropout = options.attention_dropout = 0.1;
  options.recompute_granularity = "selective";
  expect_plan_is_allocated(options, {1, 2, 1});
  options.recompute_granularity = "full";
  options.recompute_method = "uniform";
  options.recompute_num_layers = 2;
  expect_plan_is_allocated(options, {2, 2, 1});
}

TEST(FewPlannedMemory, OfPartsOfTheRows) {
  TrainOptions options = model_xs();
  options.sequence_parallel = true;
  expect_plan_is_allocated(options, {2, 1, 1});
  options.hidden_dropout = 0.1;
  options.bf16 = true;
  options.micro_batch_size = 2;
  expect_plan_is_allocated(options, {4, 2, 1});
  options.recompute_granularity = "selective";
  options.zero_stage = 1;
  expect_plan_is_allocated(options, {2, 1, 2});
  options.zero_stage = 3;
  expect_plan_is_allocated(options, {2, 1, 2});
  options.recompute_granularity = "full";
  options.recompute_method = "uniform";
  options.pipeline_schedule = "gpipe";
  expect_plan_is_allocated(options, {2, 2, 1});
}

TEST(PlannedMemory, IsWhatARunAllocates) {
  for (const GridShape& grid :
       {GridShape{1, 1, 1}, GridShape{2, 1, 1}, GridShape{1, 4, 1}, GridShape{1, 1, 2}, GridShape{2, 2, 2}}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      for (const bool untied : {false, true}) {
        for (const int64_t micro_batch : {1, 2}) {
          TrainOptions options = model_xs();
          options.pipeline_schedule = schedule;
          options.untie_embeddings_and_output_weights = untied;
          options.micro_batch_size = micro_batch;
          options.bf16 = micro_batch == 2 && untied;
          options.zero_stage = 2 * (micro_batch - 1) + (untied ? 1 : 0);
          expect_plan_is_allocated(options, grid);
        }
      }
    }
  }
}

// What a block saves for one micro-batch: e s b h (4 + (4 + 2 f / h) / t) + 16 s b + 4 a b s / t bytes, with e bytes a
// value, width h, ffn f, a heads, sequence s, micro-batch b, tensor size t.
TEST(FewPlannedMemory, OfABlockIsTheFormula) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int t : {1, 2, 4}) {
      for (const int64_t b : {1, 3}) {
        constexpr int64_t h = 256, f = 1024, a = 8, s = 128;
        RunShape shape;
        shape.config = {.width = h, .num_heads = a, .ffn = f, .max_positions = s, .vocab = 64, .padded_vocab = 64};
        shape.config.dtype = dtype;
        shape.grid.tensor = t;
        shape.batch = {b, s};
        const auto activations = [&](int64_t num_layers) {
          shape.config.num_layers = num_layers;
          shape.layers_per_stage = {num_layers};
          return plan_memory(shape)[0].of(MemoryItem::kActivations);
        };
        const auto e = static_cast<int64_t>(dtype_bytes(dtype));
        EXPECT_EQ(activations(3) - activations(2),
                  e * s * b * (4 * h + (4 * h + 2 * f) / t) + 16 * s * b + 4 * a * b * s / t)
            << dtype_name(dtype) << " t " << t << " b " << b;
        // With sequence parallelism all of it is shared out, the norms' statistics too.
        shape.batch.row_parts = t;
        EXPECT_EQ(activations(3) - activations(2), (e * s * b * (8 * h + 2 * f) + 16 * s * b + 4 * a * b * s) / t)
            << dtype_name(dtype) << " t " << t << " b " << b;
      }
    }
  }
}

// Made again: without the norms' outputs (2 e s b h) and the activation's (e s b f / t) under the default modules,
// without the heads' output and log-sum-exp (e s b h / t + 4 a b s / t) for core_attn, and with nothing but its output
// kept (e s b h) for a layer of full granularity; no masks.
TEST(FewPlannedMemory, OfARecomputedBlockIsTheFormula) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int t : {1, 2}) {
      constexpr int64_t h = 256, f = 1024, a = 8, s = 128, b = 3;
      RunShape shape;
      shape.config = {.width = h, .num_heads = a, .ffn = f, .max_positions = s, .vocab = 64, .padded_vocab = 64};
      shape.config.dtype = dtype;
      shape.config.hidden_dropout = shape.config.attention_dropout = 0.1;
      shape.grid.tensor = t;
      shape.batch = {b, s};
      const auto of_a_layer = [&](const Recompute& recompute, int64_t layers) {
        shape.config.recompute = recompute;
        const auto activations = [&](int64_t num_layers) {
          shape.config.num_layers = num_layers;
          shape.layers_per_stage = {num_layers};
          return plan_memory(shape)[0].of(MemoryItem::kActivations);
        };
        return (activations(3 * layers) - activations(2 * layers));
      };
      const auto e = static_cast<int64_t>(dtype_bytes(dtype));
      const int64_t whole = e * s * b * (4 * h + (4 * h + 2 * f) / t) + 16 * s * b + 4 * a * b * s / t;
      EXPECT_EQ(of_a_layer({}, 1), whole);
      EXPECT_EQ(of_a_layer({.selective = {.layernorm = true, .mlp_act = true}}, 1),
                whole - e * s * b * (2 * h + f / t));
      EXPECT_EQ(of_a_layer({.selective = {.core_attn = true}}, 1), whole - e * s * b * h / t - 4 * a * b * s / t);
      EXPECT_EQ(of_a_layer({.method = RecomputeMethod::kUniform, .num_layers = 1, .selective = {}}, 1), e * s * b * h);
      EXPECT_EQ(of_a_layer({.method = RecomputeMethod::kUniform, .num_layers = 2, .selective = {}}, 2), e * s * b * h);
      EXPECT_EQ(of_a_layer({.method = RecomputeMethod::kBlock, .num_layers = 2, .selective = {}}, 1), whole);
    }
  }
}

// 2 bytes of weight, 4 of gradient or 2 with --grad-reduce-in-bf16, 12 of master and moments; or 4, 4 and 8. Stage 1
// cuts the last part in eight, 2 the gradient too, 3 the weight too; a rank of stage 2 or 3 has besides what stands in
// buffers.
TEST(FewPlannedMemory, PerParameterIsTheFormulaOfEachZeroStage) {
  RunShape shape;
  shape.config = {.num_layers = 18,
                  .width = 2048,
                  .num_heads = 16,
                  .ffn = 8192,
                  .max_positions = 2048,
                  .vocab = 50304,
                  .padded_vocab = 50304};
  shape.layers_per_stage = {18};
  shape.grid.data = 8;
  shape.num_microbatches = 2;
  shape.batch = {1, 2048};
  const double parameters = static_cast<double>(count_parameters(shape.config));
  EXPECT_NEAR(parameters / 1e9, 1.0, 0.02);
  const auto planned = [&](DType dtype, int stage, bool grads_in_bf16) {
    shape.config.dtype = dtype;
    shape.sharding = {.zero_stage = stage,
                      .num_shards = stage == 0 ? 1 : 8,
                      .bucket_elements = 40'000'000,
                      .each_microbatch = stage >= 2,
                      .grads_in_bf16 = grads_in_bf16};
    return plan_memory(shape)[0];
  };
  struct Row {
    DType dtype;
    bool grads_in_bf16;
    std::array<double, 4> bytes;  // by stage
  };
  for (const Row& row : {Row{DType::kBF16, false, {18, 7.5, 4.0, 2.25}},
                         {DType::kBF16, true, {16, 5.5, 3.75, 2.0}},
                         {DType::kF32, false, {16, 9, 5.5, 2}}}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const RankMemory memory = planned(row.dtype, stage, row.grads_in_bf16);
      const double expected = row.bytes[static_cast<size_t>(stage)];
      // A tied table on one rank has a gradient for each of its uses.
      const double twice = (row.grads_in_bf16 ? 2.0 : 4.0) * 50304 * 2048 / (stage >= 2 ? 8 : 1);
      const double each = (static_cast<double>(memory.state()) - twice) / parameters;
      EXPECT_NEAR(each, expected, 0.005 * expected)
          << "stage " << stage << " " << dtype_name(row.dtype) << " " << row.grads_in_bf16;
      EXPECT_EQ(memory.of(MemoryItem::kGradientStaging) > 0, stage >= 2 || row.grads_in_bf16);
      EXPECT_EQ(memory.of(MemoryItem::kGatheredParameters) > 0, stage == 3);
    }
  }
}

TEST(PlannedMemory, OfModelSOnTwoDataRanks) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool bf16 : {false, true}) {
      TrainOptions options = model_s();
      options.zero_stage = stage;
      options.bf16 = bf16;
      expect_plan_is_allocated(options, {1, 1, 2});
    }
  }
}

TEST(PlannedMemory, OfUnevenStagesAndPlainSgd) {
  TrainOptions options = with_sgd(tiny_options(), 0.1, 0);
  options.decoder_first_pipeline_num_layers = 1;
  options.decoder_last_pipeline_num_layers = 4;
  expect_plan_is_allocated(options, {1, 3, 1});
  options.bf16 = true;
  expect_plan_is_allocated(options, {2, 3, 1});
  options = tiny_options();
  options.global_batch_size = 2;  // fewer micro-batches than stages
  expect_plan_is_allocated(options, {1, 4, 1});
}

}  // namespace
}  // namespace ashlar
