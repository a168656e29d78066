// --memory-limit-gb: who is refused, with which words, and that the change it names is enough and the cheapest.
#include "parallel/train/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/plan/memory.h"
#include "parallel/train/run_shape_of.h"
#include "runtime/base/error.h"
#include "tests/parallel/train/tiny_run.h"

namespace ashlar {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;

int64_t fullest_bytes(const TrainOptions& options) {
  const std::vector<RankMemory> stages = plan_memory(run_shape_of(options, {}));
  return stages[fullest_stage(stages)].total();
}

TrainOptions gpipe_of_four() {
  TrainOptions options = tiny_options();
  options.pipeline_schedule = "gpipe";
  options.micro_batch_size = 4;
  options.global_batch_size = 64;
  return with_grid(options, {1, 2, 1});
}

TrainOptions changed(TrainOptions options, const std::string& schedule, int64_t micro_batch, bool bf16,
                     GridShape grid) {
  options.pipeline_schedule = schedule;
  options.micro_batch_size = micro_batch;
  options.bf16 = bf16;
  return with_grid(options, grid);
}

std::string change_for(const TrainOptions& options, int64_t limit) {
  const auto change = cheapest_fit(options, {}, limit);
  return change ? change->flags : "nothing";
}

TEST(MemoryLimit, ProposesTheCheapestChange) {
  const TrainOptions options = gpipe_of_four();
  const int64_t one_f_one_b = fullest_bytes(changed(options, "1f1b", 4, false, {1, 2, 1}));
  const int64_t small = fullest_bytes(changed(options, "1f1b", 1, false, {1, 2, 1}));
  const int64_t bf16 = fullest_bytes(changed(options, "1f1b", 1, true, {1, 2, 1}));
  ASSERT_LT(one_f_one_b, fullest_bytes(options));
  ASSERT_LT(small, one_f_one_b);
  EXPECT_EQ(change_for(options, one_f_one_b), "--pipeline-schedule 1f1b");
  EXPECT_EQ(change_for(options, small), "--pipeline-schedule 1f1b --micro-batch-size 1");
  ASSERT_LT(bf16, small);
  EXPECT_EQ(change_for(options, bf16), "--pipeline-schedule 1f1b --micro-batch-size 1 --bf16");
  EXPECT_EQ(change_for(options, 1000), "nothing");
  EXPECT_EQ(cheapest_fit(options, {}, small)->bytes, small);
}

TEST(MemoryLimit, SplitsTheModelFurtherWhereNothingElseFits) {
  // One sample at a time already: what is left are bf16 and the grid, of the four data ranks first.
  TrainOptions options = tiny_options();
  options.hidden_size = 64;
  options.seq_length = 256;
  options = with_grid(options, {1, 1, 4});
  const int64_t bf16 = fullest_bytes(changed(options, "1f1b", 1, true, {1, 1, 4}));
  const int64_t four = fullest_bytes(changed(options, "1f1b", 1, true, {4, 1, 1}));
  ASSERT_LT(four, bf16);
  EXPECT_EQ(change_for(options, bf16), "--bf16");
  EXPECT_EQ(change_for(options, four), "--bf16 --tensor-model-parallel-size 4");
  EXPECT_THAT(change_for(options, four * 2 / 3), AllOf(HasSubstr("-model-parallel-size"), testing::EndsWith(" ranks")));
  // Where parameters are most of it, bf16 with its fp32 masters takes more: the grid alone.
  options.seq_length = 1;
  options.max_position_embeddings = 1;
  options = with_grid(options, {1, 1, 4});
  const int64_t two = fullest_bytes(changed(options, "1f1b", 1, false, {1, 2, 2}));
  ASSERT_LT(two, fullest_bytes(changed(options, "1f1b", 1, true, {1, 2, 2})));
  EXPECT_EQ(change_for(options, two), "--pipeline-model-parallel-size 2");
}

TEST(MemoryLimit, RefusesWithTableAndAdvice) {
  TrainOptions options = gpipe_of_four();
  const int64_t needed = fullest_bytes(options);
  options.memory_limit_gb = static_cast<double>(needed) / kBytesOfGb;
  EXPECT_NO_THROW(check_memory_limit(options, {}));
  options.memory_limit_gb = static_cast<double>(needed - 1) / kBytesOfGb;
  try {
    check_memory_limit(options, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("--memory-limit-gb 0.01"), HasSubstr("a rank of stage 1 needs"), HasSubstr("stage 0"),
                      HasSubstr("optimizer state"), HasSubstr("total"), HasSubstr("largest item: activations"),
                      HasSubstr("cheapest change that fits: --pipeline-schedule 1f1b (then ")));
  }
  options.memory_limit_gb = 1e-9;
  EXPECT_THROW(check_memory_limit(options, {}), Error);
}

}  // namespace
}  // namespace ashlar
