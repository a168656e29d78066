// Where the optimizer's state lies changes no bit of a run, of a resume, or of what a checkpoint holds.
#include <gmock/gmock.h>

#include <fstream>

#include "parallel/plan/memory.h"
#include "parallel/train/run_shape_of.h"
#include "parallel/train/verify_layout.h"
#include "tests/parallel/train/offload_support.h"

namespace ashlar {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

struct Case {
  GridShape grid;
  int zero_stage;
  bool bf16;
  const char* optimizer;
  std::function<void(TrainOptions&)> further{};
};

void expect_files_change_nothing(const Case& test, int64_t steps, bool queued = false) {
  const ScratchDir scratch;
  TrainOptions options = model_wide();
  options.zero_stage = test.zero_stage;
  options.bf16 = test.bf16;
  options.optimizer = test.optimizer;
  if (test.further) {
    test.further(options);
  }
  const TinySource source(options.seq_length, options.vocab_size);
  const ThreadRankOptions ranks{.queued_streams = queued};
  const RunTrace resident = run_steps(options, test.grid, source, steps, ranks);
  RunHooks hooks;
  hooks.prepare = [](Training& training) {
    ASSERT_NE(training.optimizer.offloaded(), nullptr);
    EXPECT_EQ(training.optimizer.state_bytes(), 0u);
    const auto stage = static_cast<size_t>(training.grid.coordinate().pipeline);
    EXPECT_EQ(plan_memory(run_shape_of(training.options, {}))[stage].total(), training.rank.device.allocated_bytes());
    EXPECT_THAT(training.optimizer.offloaded()->text(), HasSubstr("ashlar_offload_"));
  };
  const RunTrace offloaded = run_steps(with_state_in_files(options, scratch), test.grid, source, steps, ranks, hooks);
  const std::string where =
      fmt::format("{} stage {} {} {}", test.grid.text(), test.zero_stage, test.bf16 ? "bf16" : "fp32", test.optimizer);
  EXPECT_TRUE(offloaded.same_bits(resident)) << where;
  EXPECT_TRUE(offloaded.weights == resident.weights) << where;
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(FewOffload, FilesChangeNoBit) {
  expect_files_change_nothing({{1, 1, 1}, 0, false, "adam"}, 3);
  expect_files_change_nothing({{1, 1, 2}, 1, true, "adam"}, 3);
}

TEST(FewOffload, QueuedStreamsWaitForTheirDisk) {
  expect_files_change_nothing({{1, 1, 2}, 2, true, "adam"}, 3, true);
}

TEST(FewOffload, StateThatIsNotThereOrThereAlreadyIsRefused) {
  TrainOptions options = with_grid(model_wide(), {1, 1, 1});
  const auto refusal = [&] {
    std::string text;
    run_ranks(1, [&](RankContext& rank) {
      try {
        const Training training(rank, options);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUsage);
        text = error.what();
      }
    });
    return text;
  };
  options.offload_optimizer_device = "cpu";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--offload-optimizer-device cpu"), HasSubstr("already")));
  const ScratchDir scratch;
  options.offload_optimizer_device = "nvme";
  options.nvme_path = (scratch / "absent" / "more").string();
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--nvme-path"), HasSubstr("found nothing"),
                               HasSubstr("nearest directory is " + scratch.path().string())));
  std::ofstream(scratch / "file") << "x";
  options.nvme_path = (scratch / "file").string();
  EXPECT_THAT(refusal(), HasSubstr("found a file"));
  options.nvme_path = "/proc/self";  // a directory, and no place for files
  EXPECT_THAT(refusal(), AllOf(HasSubstr("cannot create"), HasSubstr("/proc/self")));
  options.nvme_path = scratch.path().string();
  options.optimizer = "sgd";
  EXPECT_THAT(refusal(), HasSubstr("has no state"));
  options.fp16 = true;  // masters are state
  EXPECT_EQ(refusal(), "");
}

TEST(FewOffload, DiskThatFailsUnderAStepEndsTheJobAtOnce) {
  const ScratchDir scratch;
  TrainOptions options = with_state_in_files(model_wide(), scratch);
  options.zero_stage = 1;
  options.test_offload_fault = "rank=1,bytes=300000";
  EXPECT_THAT(expect_failed_disk_ends_job(options), HasSubstr("UPDATE"));
}

// In fp32 there are no masters: nothing is written before the first step.
TEST(FewOffload, WriteThatFailsBehindTheLastStepIsSaid) {
  const ScratchDir scratch;
  TrainOptions options = with_grid(with_state_in_files(model_wide(), scratch), {1, 1, 1});
  options.test_offload_fault = fmt::format("rank=0,bytes={}", 2 * file_bytes(options, 0).state - 1);
  expect_failed_last_write_is_said(options, 2);
}

TEST(FewOffload, LayoutsAreVerifiedAgainstStateInMemory) {
  const ScratchDir scratch;
  TrainOptions options = with_state_in_files(model_wide(), scratch);
  options.zero_stage = 1;
  options = with_grid(options, {1, 1, 2});
  const TinySource source(options.seq_length, options.vocab_size);
  // Rank 0 could not write the state of the whole model.
  options.test_offload_fault = fmt::format("rank=0,bytes={}", 2 * file_bytes(options, 0).state);
  run_ranks(2, [&](RankContext& rank) { EXPECT_TRUE(verify_layout(rank, options, source, 2).equal); });
}

// Also of what is in neither: a run that is not offloaded goes on from one that was, and the other way round.
void check_resume(bool offload_first, bool offload_then, const GridShape& grid, int zero_stage, bool bf16) {
  const ScratchDir files;
  TrainOptions options = model_wide();
  options.zero_stage = zero_stage;
  options.bf16 = bf16;
  const TrainOptions in_files = with_state_in_files(options, files);
  expect_resume(options, offload_first ? in_files : options, offload_then ? in_files : options, grid, 3,
                fmt::format("{} stage {} {} {} then {}", grid.text(), zero_stage, bf16 ? "bf16" : "fp32", offload_first,
                            offload_then));
}

TEST(FewOffload, CheckpointsDoNotKnowWhereStateLay) {
  check_resume(true, true, {1, 1, 1}, 0, false);
  check_resume(false, true, {1, 1, 2}, 1, true);
  check_resume(true, false, {1, 1, 2}, 2, true);
}

TEST(Offload, TwentyStepsOnEveryStage) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    for (const int data : {1, 2, 4}) {
      for (const bool bf16 : {false, true}) {
        expect_files_change_nothing({{1, 1, data}, zero_stage, bf16, "adam"}, 20);
      }
    }
  }
}

TEST(Offload, OtherGridsAndOptimizers) {
  expect_files_change_nothing({{2, 2, 2}, 1, false, "adam"}, 4);
  expect_files_change_nothing({{2, 2, 1}, 0, true, "adam"}, 4);
  expect_files_change_nothing({{1, 2, 2}, 3, true, "sgd"}, 4);
}

TEST(Offload, WithOtherWaysToCutAndToSum) {
  const auto rows = [](TrainOptions& options) { options.sequence_parallel = true; };
  const auto bf16_sums = [](TrainOptions& options) { options.grad_reduce_in_bf16 = true; };
  const auto instances = [](TrainOptions& options) { options.num_distributed_optimizer_instances = 2; };
  expect_files_change_nothing({{2, 1, 2}, 3, false, "adam", rows}, 4);
  expect_files_change_nothing({{1, 1, 2}, 1, true, "adam", bf16_sums}, 4);
  expect_files_change_nothing({{1, 1, 4}, 2, true, "adam", instances}, 4);
  expect_files_change_nothing({{2, 1, 2},
                               3,
                               true,
                               "adam",
                               [&](TrainOptions& options) {
                                 rows(options);
                                 bf16_sums(options);
                                 options.overlap_grad_reduce = options.overlap_param_gather = true;
                               }},
                              4);
}

TEST(Offload, ResumesOnEveryStage) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    for (const bool bf16 : {false, true}) {
      check_resume(true, true, {1, 1, 2}, zero_stage, bf16);
    }
  }
}

}  // namespace
}  // namespace ashlar
