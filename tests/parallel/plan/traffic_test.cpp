// What the plan says and what the communicators count in a step are one number, for every group.
#include "parallel/plan/traffic.h"

#include <gtest/gtest.h>

#include "parallel/train/run_shape_of.h"
#include "tests/parallel/train/offload_support.h"

namespace ashlar {
namespace {

using namespace test;

int64_t bytes_sent(const Communicator& comm) {
  int64_t sum = 0;
  for (int kind = 0; kind < static_cast<int>(kNumOpKinds); ++kind) {
    sum += comm.bytes_sent(static_cast<OpKind>(kind));
  }
  return sum;
}

std::array<int64_t, kNumTrafficGroups> bytes_sent(const Training& training) {
  const ProcessGrid& grid = training.grid;
  const bool has_embedding = grid.is_first_stage() || grid.is_last_stage();
  const int64_t within_data = grid.num_instances() > 1 ? bytes_sent(grid.shard()) + bytes_sent(grid.replicate()) : 0;
  return {bytes_sent(grid.tensor()),
          bytes_sent(grid.pipeline()),
          bytes_sent(grid.data()) + within_data,
          has_embedding ? bytes_sent(grid.embedding()) : 0,
          bytes_sent(grid.model()),
          bytes_sent(grid.world())};
}

void expect_plan_is_sent(const TrainOptions& options, const GridShape& grid) {
  const TrainOptions resolved = with_grid(options, grid);
  const std::vector<RankTraffic> plan = plan_traffic(run_shape_of(resolved, {}));
  const TinySource source(options.seq_length, options.vocab_size);
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, resolved);
    const RankTraffic& planned = plan[static_cast<size_t>(training.grid.coordinate().pipeline)];
    const auto before = bytes_sent(training);
    train_step(training, source);
    const auto behind = bytes_sent(training);
    train_step(training, source);
    const auto twice = bytes_sent(training);
    const Communicator* groups[] = {&training.grid.tensor(), &training.grid.pipeline(), &training.grid.data()};
    for (size_t group = 0; group < kNumTrafficGroups; ++group) {
      const std::string where = fmt::format("{} {} {} {}: group {} of rank {}", grid.text(), options.pipeline_schedule,
                                            options.untie_embeddings_and_output_weights ? "untied" : "tied",
                                            dtype_name(training.config.dtype),
                                            traffic_group_name(static_cast<TrafficGroup>(group)), rank.world.rank());
      EXPECT_EQ(behind[group] - before[group], planned[group].payload_bytes) << where;
      EXPECT_EQ(twice[group] - behind[group], planned[group].payload_bytes) << where << ", second step";
      if (group < std::size(groups)) {
        EXPECT_EQ(groups[group]->size(), planned[group].num_ranks) << where;
      }
    }
  });
}

TEST(FewPlannedTraffic, IsWhatAStepSends) {
  TrainOptions options = model_xs();
  expect_plan_is_sent(options, {1, 1, 1});
  options.recompute_granularity = "full";
  options.recompute_method = "uniform";
  options.recompute_num_layers = 2;
  expect_plan_is_sent(options, {2, 1, 1});
  options.recompute_method = "block";
  expect_plan_is_sent(options, {2, 2, 1});
  options = model_xs();
  options.micro_batch_size = 2;
  expect_plan_is_sent(options, {2, 2, 1});
  options.bf16 = true;
  expect_plan_is_sent(options, {1, 2, 2});
  options.zero_stage = 1;
  expect_plan_is_sent(options, {1, 2, 2});
  for (const int stage : {2, 3}) {
    options = model_xs();
    options.zero_stage = stage;
    expect_plan_is_sent(options, {1, 1, 2});
    options.recompute_granularity = "full";
    options.recompute_method = "uniform";
    options.recompute_num_layers = 3;
    options.grad_reduce = "step";
    expect_plan_is_sent(options, {1, 1, 2});
    options.pipeline_schedule = "gpipe";  // windows of many passes
    expect_plan_is_sent(options, {1, 1, 2});
    options.recompute_num_layers = 2;
    options.bf16 = options.grad_reduce_in_bf16 = true;
    expect_plan_is_sent(options, {1, 2, 2});
    options.grad_reduce = "micro-batch";
    expect_plan_is_sent(options, {1, 2, 2});
  }
}

// In units of parameters x (d - 1) / d, on a model of which padding is a small part: 2 without sharding and with stage
// 1, m + 1 with stage 2, at most 3 m with stage 3; with --grad-reduce step 2, 2 and 2 m + 1. At stage 3 the embedding
// is gathered once for each micro-batch as its backward pass reads no weight, and so is the head whose backward pass
// follows its forward pass at once.
TEST(FewPlannedTraffic, OfTheDataAxisIsTheFormula) {
  for (const int data : {2, 4, 8}) {
    RunShape shape;
    shape.config = {.num_layers = 8, .width = 512, .num_heads = 8, .ffn = 2048, .max_positions = 64, .vocab = 512};
    shape.config.padded_vocab = 512;
    shape.config.tied = false;
    shape.layers_per_stage = {8};
    shape.grid = {1, 1, data};
    shape.num_microbatches = 5;
    shape.batch = {1, 64};
    const double parameters = static_cast<double>(count_parameters(shape.config));
    const double once = (512.0 + 64.0 + 512.0) * 512.0 / parameters;
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool each_microbatch : {false, true}) {
        shape.sharding = {.zero_stage = stage,
                          .num_shards = stage == 0 ? 1 : data,
                          .bucket_elements = 40000000,
                          .each_microbatch = each_microbatch};
        const double m = 5, sums = each_microbatch ? m : 1;
        const double expected = stage == 0 ? 2 * sums : stage < 3 ? sums + 1 : sums + 2 * m - m * once;
        const auto wire = plan_traffic(shape)[0][static_cast<size_t>(TrafficGroup::kData)].wire_bytes;
        const double unit = 4 * parameters * (data - 1) / data;
        EXPECT_NEAR(static_cast<double>(wire) / unit, expected, 0.02 * expected)
            << "stage " << stage << " data " << data << " " << each_microbatch;
      }
    }
  }
}

TEST(FewPlannedTraffic, OfPartsOfTheRows) {
  TrainOptions options = model_xs();
  options.sequence_parallel = true;
  expect_plan_is_sent(options, {2, 1, 1});
  options.recompute_granularity = "full";
  options.recompute_method = "uniform";
  options.recompute_num_layers = 2;
  expect_plan_is_sent(options, {2, 2, 1});
  options.recompute_granularity = "selective";
  options.recompute_method = "";
  options.recompute_num_layers = 1;
  options.hidden_dropout = 0.1;
  options.bf16 = true;
  options.zero_stage = 1;
  expect_plan_is_sent(options, {4, 1, 2});
  options.zero_stage = 2;  // gradients meet behind each micro-batch
  expect_plan_is_sent(options, {2, 1, 2});
}

TEST(PlannedTraffic, IsWhatAStepSends) {
  for (const GridShape& grid :
       {GridShape{2, 1, 1}, GridShape{1, 4, 1}, GridShape{1, 1, 4}, GridShape{2, 2, 2}, GridShape{4, 2, 1}}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      for (const bool untied : {false, true}) {
        TrainOptions options = model_xs();
        options.pipeline_schedule = schedule;
        options.untie_embeddings_and_output_weights = untied;
        options.bf16 = untied;
        options.ddp_bucket_size = 100;  // many buckets send as much as one
        expect_plan_is_sent(options, grid);
        for (const int stage : {1, 2, 3}) {
          options.zero_stage = stage;
          expect_plan_is_sent(options, grid);
        }
      }
    }
  }
}

// The data ranks send each other as much wherever a rank's own part lies.
TEST(FewPlannedTraffic, OfWeightsInFiles) {
  const ScratchDir scratch;
  expect_plan_is_sent(with_weights_in_files(model_xs(), scratch), {1, 1, 2});
  expect_plan_is_sent(with_weights_in_files(model_xs(), scratch), {2, 1, 1});  // one that gathers from itself
  TrainOptions options = with_weights_in_files(model_xs(), scratch);
  options.num_distributed_optimizer_instances = 2;
  for (const int data : {2, 4}) {
    expect_plan_is_sent(options, {1, 1, data});
  }
}

TEST(FewPlannedTraffic, OfGroupsThatShareAmongThemselves) {
  TrainOptions options = model_xs();
  options.num_distributed_optimizer_instances = 2;
  for (const int stage : {1, 2, 3}) {
    options.zero_stage = stage;
    options.bf16 = options.grad_reduce_in_bf16 = stage == 2;
    expect_plan_is_sent(options, {1, 1, 4});
    expect_plan_is_sent(options, {1, 2, 4});
  }
  options.num_distributed_optimizer_instances =
      4;  // groups of one: nothing is shared out, and all sums are of replicas
  expect_plan_is_sent(options, {1, 1, 4});
}

TEST(PlannedTraffic, OfUnevenStages) {
  TrainOptions options = tiny_options();
  options.decoder_first_pipeline_num_layers = 1;
  expect_plan_is_sent(options, {2, 3, 1});
}

// Two blocks on one stage, 3 micro-batches, tensor 4, data 2: by hand.
TEST(PlannedTraffic, OnTheWireOfARing) {
  RunShape shape;
  shape.config = {.num_layers = 2, .width = 8, .num_heads = 4, .ffn = 32, .max_positions = 4, .vocab = 16};
  shape.config.padded_vocab = 16;
  shape.layers_per_stage = {2};
  shape.grid = {4, 1, 2};
  shape.num_microbatches = 3;
  shape.batch = {2, 4};
  const RankTraffic traffic = plan_traffic(shape)[0];
  const auto& tensor = traffic[static_cast<size_t>(TrafficGroup::kTensor)];
  const int64_t activation = 2 * 4 * 8 * 4;
  const int64_t statistics = 2 * 4 * 3 * 4;
  EXPECT_EQ(tensor.payload_bytes, 3 * (10 * activation + statistics));
  EXPECT_EQ(tensor.wire_bytes, 3 * (10 * activation * 6 / 4 + 3 * statistics));
  shape.config.sequence_parallel = true;
  shape.batch.row_parts = 4;
  const RankTraffic split_rows = plan_traffic(shape)[0];
  const auto& split = split_rows[static_cast<size_t>(TrafficGroup::kTensor)];
  const int64_t partial = (2 * 6 * 8 + 2 * 8 + 4 * 8) * 4;  // six rows of C in a block, the last norm, positions
  EXPECT_EQ(split.payload_bytes, 3 * (10 * activation + 15 * activation / 4 + statistics) + partial);
  EXPECT_EQ(split.wire_bytes,
            3 * (10 * activation * 3 / 4 + 15 * activation * 3 / 4 + 3 * statistics) + partial * 6 / 4);
  const auto& data = traffic[static_cast<size_t>(TrafficGroup::kData)];
  EXPECT_EQ(data.wire_bytes, data.payload_bytes);  // 2 (d - 1) / d = 1
  EXPECT_EQ(traffic[static_cast<size_t>(TrafficGroup::kPipeline)].payload_bytes, 0);
  EXPECT_EQ(traffic[static_cast<size_t>(TrafficGroup::kEmbedding)].payload_bytes, 0);
}

}  // namespace
}  // namespace ashlar
