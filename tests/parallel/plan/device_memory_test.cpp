// The plan for GPUs against what a run allocates on emulated ones, over NCCL and staged: the kernels' workspace and the
// communicators' scratch are in it.
#include <gtest/gtest.h>

#include "parallel/plan/memory.h"
#include "parallel/train/run_shape_of.h"
#include "tests/parallel/train/run_trace.h"

namespace ashlar {
namespace {

using namespace test;

void expect_plan_is_allocated(const TrainOptions& options, const GridShape& grid, DeviceBackend backend) {
  const TrainOptions resolved = with_grid(options, grid);
  const DeviceRequest device{.kind = DeviceKind::kCuda, .backend = backend};
  const std::vector<RankMemory> plan = plan_memory(run_shape_of(resolved, device));
  run_ranks(grid.num_ranks(),
            [&](RankContext& rank) {
              Training training(rank, resolved);
              const RankMemory& planned = plan[static_cast<size_t>(training.grid.coordinate().pipeline)];
              EXPECT_EQ(planned.total(), rank.device.allocated_bytes())
                  << grid.text() << " " << (backend == DeviceBackend::kNccl ? "nccl" : "staged") << " rank "
                  << rank.world.rank();
              EXPECT_EQ(planned.of(MemoryItem::kParameters), static_cast<int64_t>(training.store.value_bytes()));
              EXPECT_EQ(planned.of(MemoryItem::kOptimizer), static_cast<int64_t>(training.optimizer.state_bytes()));
              EXPECT_EQ(planned.of(MemoryItem::kActivations),
                        static_cast<int64_t>(training.executor.bytes().activations));
              EXPECT_EQ(planned.of(MemoryItem::kActivationGradients),
                        static_cast<int64_t>(training.executor.bytes().gradients));
              EXPECT_GT(planned.of(MemoryItem::kKernels), 0);
              EXPECT_EQ(planned.of(MemoryItem::kCommunication) > 0, backend == DeviceBackend::kNccl);
            },
            {.timeout_seconds = 300, .device = device});
}

TEST(DeviceMemory, IsWhatThePlanSays) {
  TrainOptions options = model_xs();
  for (const DeviceBackend backend : {DeviceBackend::kNccl, DeviceBackend::kStaged}) {
    for (const bool bf16 : {false, true}) {
      options.bf16 = bf16;
      for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{2, 2, 1}, GridShape{1, 4, 2}}) {
        expect_plan_is_allocated(options, grid, backend);
      }
    }
  }
}

}  // namespace
}  // namespace ashlar
