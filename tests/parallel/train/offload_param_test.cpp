// Where a rank's part of the weights lies changes no bit of a run, of its evaluation, of a resume.
#include <gmock/gmock.h>

#include <fstream>

#include "parallel/plan/memory.h"
#include "parallel/train/run_shape_of.h"
#include "tests/parallel/train/offload_support.h"

namespace ashlar {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

struct Case {
  GridShape grid;
  bool bf16;
  std::function<void(TrainOptions&)> further{};
};

TrainOptions options_of(const Case& test) {
  TrainOptions options = model_xs();
  options.zero_stage = 3;
  options.bf16 = test.bf16;
  if (test.further) {
    test.further(options);
  }
  return options;
}

struct Trace {
  RunTrace run;
  std::vector<double> evaluations;  // behind each step
};

Trace run(const TrainOptions& options, const GridShape& grid, int64_t steps, const ThreadRankOptions& ranks) {
  const TinySource source(options.seq_length, options.vocab_size);
  Trace trace;
  RunHooks hooks;
  hooks.prepare = [](Training& training) {
    const auto stage = static_cast<size_t>(training.grid.coordinate().pipeline);
    EXPECT_EQ(plan_memory(run_shape_of(training.options, {}))[stage].total(), training.rank.device.allocated_bytes());
    EXPECT_EQ(training.store.value_home() != nullptr, !training.options.offload_param_device.empty());
  };
  hooks.behind_step = [&](Training& training, const StepResult&) {
    const double loss = evaluate(training, source, 1);
    if (training.rank.world.rank() == 0) {
      trace.evaluations.push_back(loss);
    }
  };
  trace.run = run_steps(options, grid, source, steps, ranks, hooks);
  return trace;
}

void expect_files_change_nothing(const Case& test, int64_t steps, bool queued = false) {
  const ScratchDir scratch;
  const TrainOptions options = options_of(test);
  const ThreadRankOptions ranks{.queued_streams = queued};
  const Trace resident = run(options, test.grid, steps, ranks);
  const Trace files = run(with_weights_in_files(options, scratch), test.grid, steps, ranks);
  const std::string where = fmt::format("{} {}", test.grid.text(), test.bf16 ? "bf16" : "fp32");
  EXPECT_TRUE(files.run.same_bits(resident.run)) << where;
  EXPECT_TRUE(files.run.weights == resident.run.weights) << where;
  EXPECT_EQ(files.evaluations, resident.evaluations) << where;
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

void overlaps(TrainOptions& options) {
  options.overlap_grad_reduce = options.overlap_param_gather = true;
}

// A file of layers of several buckets, a table that both ends of one rank use, and one that two ranks use.
TEST(FewOffloadParam, FilesChangeNoBit) {
  expect_files_change_nothing({{1, 1, 2}, false}, 3);
  expect_files_change_nothing({{1, 2, 2},
                               true,
                               [](TrainOptions& options) {
                                 overlaps(options);
                                 options.ddp_bucket_size = 1;
                               }},
                              3);
}

TEST(FewOffloadParam, OneDataRankReadsLayersToo) {
  expect_files_change_nothing({{1, 1, 1}, true, overlaps}, 3);
}

// Passes that follow each other in one window, of which the last layer of one and the first of the next may have one
// place in memory, and their parts in the file one too.
TEST(FewOffloadParam, LongWindowsChangeNoBit) {
  for (const int64_t layers : {3, 4}) {
    expect_files_change_nothing({{1, 1, 2},
                                 false,
                                 [&](TrainOptions& options) {
                                   overlaps(options);
                                   options.num_layers = layers;
                                   options.pipeline_schedule = "gpipe";
                                   options.grad_reduce = "step";
                                 }},
                                2, layers == 3);
  }
}

TEST(FewOffloadParam, QueuedStreamsWaitForTheirDisk) {
  expect_files_change_nothing({{1, 1, 2}, false, overlaps}, 3, true);
}

void check_resume(const GridShape& grid, bool bf16, bool files_first, bool files_then) {
  const ScratchDir scratch;
  const TrainOptions options = options_of({grid, bf16});
  const TrainOptions files = with_weights_in_files(options, scratch);
  expect_resume(options, files_first ? files : options, files_then ? files : options, grid, 2,
                fmt::format("{} {} {} then {}", grid.text(), bf16 ? "bf16" : "fp32", files_first, files_then));
}

TEST(FewOffloadParam, CheckpointsDoNotKnowWhereWeightsLay) {
  check_resume({1, 1, 2}, false, true, true);
  check_resume({1, 1, 2}, true, false, true);
  check_resume({1, 1, 2}, true, true, false);
}

// The disk of the weights only, each layer's part written once at the start and once a step. What failed is found when
// the place in memory is needed again: of the first layers in the same update, of the last ones in a pass of the next
// step.
TEST(FewOffloadParam, DiskThatFailsUnderAStepEndsTheJobAtOnce) {
  const ScratchDir scratch;
  TrainOptions options = with_weights_in_files(options_of({{1, 1, 2}, false}), scratch);
  const int64_t bytes = file_bytes(with_grid(options, {1, 1, 2}), 1).weights;
  options.test_offload_fault = fmt::format("rank=1,bytes={},file=param", 2 * bytes);
  EXPECT_THAT(expect_failed_disk_ends_job(options), HasSubstr("UPDATE"));
  options.test_offload_fault = fmt::format("rank=1,bytes={},file=param", 2 * bytes - 1);
  EXPECT_THAT(expect_failed_disk_ends_job(options), HasSubstr("0F0"));
}

TEST(FewOffloadParam, WriteThatFailsBehindTheLastStepIsSaid) {
  const ScratchDir scratch;
  TrainOptions options = with_grid(with_weights_in_files(options_of({{1, 1, 1}, false}), scratch), {1, 1, 1});
  options.test_offload_fault = fmt::format("rank=0,bytes={},file=param", 2 * file_bytes(options, 0).weights - 1);
  expect_failed_last_write_is_said(options, 1);
}

TEST(FewOffloadParam, DirectoriesThatDoNotServeAreRefused) {
  const ScratchDir scratch;
  TrainOptions options = with_weights_in_files(with_grid(options_of({{1, 1, 1}, false}), {1, 1, 1}), scratch);
  options.offload_optimizer_device = "cpu";
  const auto refusal = [&] {
    std::string text;
    run_ranks(1, [&](RankContext& rank) {
      try {
        const OffloadConfig config{
            .state = HomeKind::kHost, .values = HomeKind::kFiles, .value_files = {.directory = options.nvme_path}};
        const FlatTensor tensor{.num_elements = 5};
        const auto stream = rank.device.create_stream();
        const ValueHome home(rank, *stream,
                             lay_out_flat(std::span(&tensor, 1), {.zero_stage = 3, .values_elsewhere = true}),
                             DType::kF32, config);
      } catch (const AgreedError& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUsage);
        text = error.what();
      }
    });
    return text;
  };
  EXPECT_EQ(refusal(), "");
  options.nvme_path = (scratch / "absent").string();
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--nvme-path"), HasSubstr("found nothing")));
  options.nvme_path = "/proc/self";
  EXPECT_THAT(refusal(), HasSubstr("cannot create"));
}

TEST(OffloadParam, TwentySteps) {
  for (const int data : {1, 2, 4}) {
    for (const bool bf16 : {false, true}) {
      expect_files_change_nothing({{1, 1, data}, bf16}, 20);
    }
  }
}

TEST(OffloadParam, OtherGridsAndWays) {
  expect_files_change_nothing({{2, 2, 2}, false, [](TrainOptions& options) { options.sequence_parallel = true; }}, 3);
  expect_files_change_nothing({{1, 1, 2}, false, [](TrainOptions& options) { options.optimizer = "sgd"; }}, 3);
  expect_files_change_nothing({{1, 1, 4},
                               true,
                               [](TrainOptions& options) {
                                 overlaps(options);
                                 options.grad_reduce_in_bf16 = true;
                                 options.num_distributed_optimizer_instances = 2;
                                 options.recompute_granularity = "full";
                                 options.recompute_method = "uniform";
                                 options.recompute_num_layers = 1;
                               }},
                              3);
  expect_files_change_nothing({{1, 2, 2},
                               false,
                               [](TrainOptions& options) {
                                 options.untie_embeddings_and_output_weights = true;
                                 options.pipeline_schedule = "gpipe";
                               }},
                              3);
}

}  // namespace
}  // namespace ashlar
