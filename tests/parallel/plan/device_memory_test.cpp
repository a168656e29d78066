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
              const std::string where = fmt::format(
                  "{} {} rank {}", grid.text(), backend == DeviceBackend::kNccl ? "nccl" : "staged", rank.world.rank());
              const MemoryUses uses = rank.device.memory_uses(MemoryKind::kDevice);
              for (size_t item = 0; item < kNumMemoryItems; ++item) {
                EXPECT_EQ(planned.bytes[item], uses.items[item].now)
                    << where << ": " << memory_item_name(static_cast<MemoryItem>(item));
              }
              EXPECT_EQ(planned.total(), uses.total.peak) << where;
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
