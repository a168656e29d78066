// What a walk asks for, and that it reads and writes nothing else: with values and gradients that are NaN except where
// they were asked for, every schedule, window, recomputation and split backward pass trains to the bits of a plain run.
#include "parallel/pipeline/param_sync.h"

#include <gmock/gmock.h>

#include "tests/parallel/pipeline/run_schedule.h"

namespace ashlar {
namespace {

using test::Outcome;
using test::PipelineRig;
using test::RigOptions;
using test::run;
using test::schedule_from;

Recompute full(RecomputeMethod method, int64_t num_layers) {
  return {.method = method, .num_layers = num_layers, .selective = {}};
}

// What one rank asks for in one step. v: values of a layer, ">" the one that is needed next; g: gradients of a layer
// and micro-batch; "/": done.
std::string walk(int64_t num_layers, const std::string& list, const Recompute& recompute = {},
                 const LoweringOptions& lowering = {}) {
  std::string log;
  run_ranks(1, [&](RankContext& rank) {
    GptConfig config = test::rig_config(num_layers);
    config.recompute = recompute;
    const Schedule compute = schedule_from(1 + (list.find("F1") != std::string::npos), {0}, {list});
    PipelineRig rig(rank, config, {num_layers}, compute, {.lowering = lowering, .watched = true});
    rig.step(0);
    rig.watched.end_step(compute.num_microbatches);
    log = rig.watched.take_log();
    EXPECT_THAT(rig.watched.faults(), testing::IsEmpty());
  });
  return log;
}

// Of an embedding (which reads nothing backward), two blocks and a head.
const char* const kForward = "v0>1 /v0 v1>2 /v1 v2>3 /v2 v3 /v3";

TEST(ParamSync, OneLayerBehindTheOther) {
  EXPECT_EQ(walk(2, "0F0 0B0"),
            std::string(kForward) + " v3>2 /v3 g3.0 /g3.0 v2>1 /v2 g2.0 /g2.0 v1 /v1 g1.0 /g1.0 g0.0 /g0.0 reduce");
  EXPECT_EQ(walk(2, "0F0 0I0 0W0"), std::string(kForward) +
                                        " v3>2 /v3 v2>1 /v2 v1 /v1 "
                                        "g3.0 /g3.0 g2.0 /g2.0 g1.0 /g1.0 g0.0 /g0.0 reduce");
}

TEST(ParamSync, WindowsAndMicroBatches) {
  EXPECT_EQ(walk(1, "0F0 0F1 0B0 0B1", {}, {.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true}),
            "open>0 v0>1 /v0 v1>2 /v1 v2>0 /v2 v0>1 /v0 v1>2 /v1 v2>2 /v2 "
            "v2>1 /v2 g2.0 /g2.0 v1 /v1 g1.0 /g1.0 g0.0 /g0.0 close reduce0 "
            "open>2 v2>1 /v2 g2.1 /g2.1 v1 /v1 g1.1 /g1.1 g0.1 /g0.1 close reduce1");
  EXPECT_EQ(walk(1, "0F0 0B0 0F1 0B1", {}, {.shard_windows = true}),
            "open>0 v0>1 /v0 v1>2 /v1 v2>2 /v2 v2>1 /v2 g2.0 /g2.0 v1>0 /v1 g1.0 /g1.0 g0.0 /g0.0 "
            "v0>1 /v0 v1>2 /v1 v2>2 /v2 v2>1 /v2 g2.1 /g2.1 v1 /v1 g1.1 /g1.1 g0.1 /g0.1 close reduce");
  EXPECT_EQ(walk(1, "0F0 0F1 0B0 0B1", {}, {.shard_windows = true}),
            "open>0 v0>1 /v0 v1>2 /v1 v2>0 /v2 v0>1 /v0 v1>2 /v1 v2>2 /v2 "
            "v2>1 /v2 g2.0 /g2.0 v1>2 /v1 g1.0 /g1.0 g0.0 /g0.0 v2>1 /v2 g2.1 /g2.1 v1 /v1 g1.1 /g1.1 g0.1 /g0.1 "
            "close reduce");
}

// A group's forward passes run upwards again; its last layer stays for its backward pass.
TEST(ParamSync, GroupsThatRunAgain) {
  EXPECT_EQ(walk(2, "0F0 0B0", full(RecomputeMethod::kUniform, 1)),
            std::string(kForward) + " v3>2 /v3 g3.0 /g3.0 v2>1 /v2 g2.0 /g2.0 v1 /v1 g1.0 /g1.0 g0.0 /g0.0 reduce");
  EXPECT_EQ(walk(3, "0F0 0B0", full(RecomputeMethod::kUniform, 3)),
            "v0>1 /v0 v1>2 /v1 v2>3 /v2 v3>4 /v3 v4 /v4 "
            "v4>1 /v4 g4.0 /g4.0 v1>2 /v1 v2>3 /v2 v3>2 /v3 g3.0 /g3.0 v2>1 /v2 g2.0 /g2.0 v1 /v1 g1.0 /g1.0 "
            "g0.0 /g0.0 reduce");
  EXPECT_EQ(walk(3, "0F0 0I0 0W0", full(RecomputeMethod::kUniform, 3)),
            "v0>1 /v0 v1>2 /v1 v2>3 /v2 v3>4 /v3 v4 /v4 "
            "v4>1 /v4 v1>2 /v1 v2>3 /v2 v3>2 /v3 v2>1 /v2 v1 /v1 "
            "g4.0 /g4.0 g3.0 /g3.0 g2.0 /g2.0 g1.0 /g1.0 g0.0 /g0.0 reduce");
}

// Norms whose outputs are made again in the weight pass read their parameters there.
TEST(ParamSync, WeightPassesThatReadValues) {
  const Recompute norms{.selective = {.layernorm = true}};
  EXPECT_EQ(walk(2, "0F0 0B0", norms),
            std::string(kForward) + " v3>2 /v3 g3.0 /g3.0 v2>1 g2.0 /g2.0 /v2 v1 g1.0 /g1.0 /v1 g0.0 /g0.0 reduce");
  EXPECT_EQ(walk(2, "0F0 0I0 0W0", norms, {.shard_windows = true, .weight_windows = true}),
            "open>0 v0>1 /v0 v1>2 /v1 v2>3 /v2 v3>3 /v3 v3>2 /v3 v2>1 /v2 v1>2 /v1 "
            "g3.0 /g3.0 v2>1 g2.0 /g2.0 /v2 v1 g1.0 /g1.0 /v1 g0.0 /g0.0 close reduce");
}

struct Case {
  Schedule compute;
  std::vector<int64_t> layers_per_stage;
};

// Whole and split backward passes, several stages on a rank, and a rank with both uses of the tied table.
std::vector<Case> cases() {
  return {
      {make_one_f_one_b(1, 4), {4}},
      {make_one_f_one_b(2, 4), {1, 3}},
      {make_gpipe(2, 4), {3, 1}},
      {schedule_from(
           4, {0, 1},
           {"0F0 0F1 0I0 0F2 0I1 0W0 0F3 0I2 0W1 0I3 0W2 0W3", "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3"}),
       {2, 2}},
      {schedule_from(4, {0, 1, 1, 0},
                     {"0F0 0F1 3F0 3I0 0F2 3W0 0I0 3F1 3I1 0W0 0F3 3W1 0I1 0W1 3F2 3I2 3W2 0I2 3F3 0W2 3I3 0I3 3W3 0W3",
                      "1F0 2F0 1F1 2F1 2I0 1I0 2W0 1F2 2F2 1W0 2I1 1I1 2W1 1W1 1F3 2F3 2B2 1B2 2I3 1I3 1W3 2W3"}),
       {1, 1, 1, 1}},
      {schedule_from(4, {0, 0, 0},
                     {"0F0 1F0 2F0 2I0 1I0 0F1 2W0 1W0 0I0 0W0 1F1 2F1 2B1 1B1 0B1 "
                      "0F2 0F3 1F2 2F2 1F3 2F3 2B2 2B3 1B2 1B3 0B2 0B3"}),
       {1, 2, 1}},
  };
}

// One rank's run without anybody watching: all cases do its sums in its order.
const Outcome& plain() {
  static const Outcome outcome = run(make_one_f_one_b(1, 4), {4}, 1, {}, {}, 0.1);
  return outcome;
}

void expect_plain(const Case& at, const Recompute& recompute, const LoweringOptions& lowering,
                  const ThreadRankOptions& ranks = {}) {
  const Outcome outcome =
      run(at.compute, at.layers_per_stage, 1, ranks, recompute, 0.1, {.lowering = lowering, .watched = true});
  EXPECT_EQ(outcome.losses, plain().losses);
  EXPECT_EQ(outcome.evaluation, plain().evaluation);
  EXPECT_EQ(outcome.weights, plain().weights);
}

TEST(ParamSync, NothingIsReadOrWrittenThatWasNotAskedFor) {
  for (const Case& at : cases()) {
    for (const GradReduce reduce : {GradReduce::kStep, GradReduce::kMicroBatch}) {
      for (const bool windows : {false, true}) {
        expect_plain(at, {}, {.grad_reduce = reduce, .shard_windows = windows});
      }
    }
  }
}

TEST(ParamSync, NorWhereGroupsRunAgain) {
  for (const Case& at : cases()) {
    for (const int64_t num_layers : {1, 2, 3}) {
      for (const RecomputeMethod method : {RecomputeMethod::kUniform, RecomputeMethod::kBlock}) {
        expect_plain(at, full(method, num_layers), {.shard_windows = true});
      }
    }
  }
}

TEST(ParamSync, NorWherePartsOfABlockRunAgain) {
  for (const Case& at : cases()) {
    for (const SelectiveRecompute selective :
         {SelectiveRecompute{.core_attn = true}, SelectiveRecompute{.layernorm = true},
          SelectiveRecompute{.mlp_act = true}}) {
      expect_plain(at, {.selective = selective},
                   {.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true, .weight_windows = true});
    }
  }
}

TEST(ParamSync, NorOnQueuedStreams) {
  expect_plain(cases()[3], {}, {.shard_windows = true}, {.queued_streams = true});
}

}  // namespace
}  // namespace ashlar
