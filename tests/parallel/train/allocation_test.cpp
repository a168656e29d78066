// Law 3: behind the first steps, a step takes no memory. What oneDNN takes goes past the counter.
#include <gtest/gtest.h>

#include "runtime/comm/host/messenger.h"
#include "tests/parallel/train/offload_support.h"
#include "tests/support/count_allocations.h"

namespace ashlar {
namespace {

using namespace test;

void expect_no_allocation(const TrainOptions& options, const GridShape& grid, const ThreadRankOptions& ranks = {}) {
  const TrainOptions resolved = with_grid(options, grid);
  const TinySource source(options.seq_length, options.vocab_size);
  run_ranks(
      grid.num_ranks(),
      [&](RankContext& rank) {
        Training training(rank, resolved);
        // Each place in the messenger's ring of exchanges takes memory when it is first used; every stage makes more
        // than one exchange for each micro-batch.
        const int64_t steps_of_a_round = static_cast<int64_t>(Messenger::kMaxBatches) / resolved.num_microbatches;
        for (int64_t step = 0; step <= (grid.pipeline > 1 ? steps_of_a_round : 0); ++step) {
          train_step(training, source);
        }
        const int64_t device_allocations = rank.device.num_allocations();
        for (int step = 0; step < 3; ++step) {
          const int64_t before = num_allocations;
          train_step(training, source);
          EXPECT_EQ(num_allocations - before, 0) << grid.text() << " " << options.pipeline_schedule << " rank "
                                                 << rank.world.rank() << " step " << training.state.iteration;
        }
        const int64_t before = num_allocations;
        evaluate(training, source, 1);
        EXPECT_EQ(num_allocations - before, 0) << grid.text() << " evaluation";
        EXPECT_EQ(rank.device.num_allocations(), device_allocations);
      },
      ranks);
}

TEST(FewAllocations, TheCounterCounts) {
  const int64_t before = num_allocations;
  const auto memory = std::make_unique<int>(1);
  EXPECT_EQ(num_allocations - before, 1);
}

TEST(FewAllocations, NoneBehindTheFirstSteps) {
  expect_no_allocation(model_xs(), {1, 1, 1});
  expect_no_allocation(model_xs(), {2, 2, 1});
  TrainOptions options = model_xs();
  options.overlap_grad_reduce = options.overlap_param_gather = true;
  for (const int stage : {1, 2, 3}) {
    options.zero_stage = stage;
    expect_no_allocation(options, {1, 2, 2});
  }
}

TEST(FewAllocations, NoneWhereStateIsOffloaded) {
  const ScratchDir scratch;
  TrainOptions options = with_state_in_files(model_xs(), scratch);
  expect_no_allocation(options, {1, 1, 1});
  options.zero_stage = 3;
  options.bf16 = true;
  expect_no_allocation(options, {1, 2, 2});
  options.offload_param_device = "nvme";
  expect_no_allocation(options, {1, 2, 2});
}

TEST(Allocations, NoneBehindTheFirstSteps) {
  TrainOptions options = model_xs();
  for (const GridShape& grid : {GridShape{2, 2, 2}, GridShape{1, 4, 1}, GridShape{4, 1, 1}}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      options.pipeline_schedule = schedule;
      expect_no_allocation(options, grid);
    }
  }
  expect_no_allocation(with_sgd(options, 0.1, 1), {1, 2, 1});
  expect_no_allocation(options, {2, 2, 2}, {.queued_streams = true});
}

}  // namespace
}  // namespace ashlar
