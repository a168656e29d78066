// The plan for GPUs against what a run allocates on emulated ones, over NCCL and staged: the kernels' workspace and the
// communicators' scratch are in it.
#include <gtest/gtest.h>

#include "parallel/plan/memory.h"
#include "parallel/train/memory_report.h"
#include "parallel/train/run_shape_of.h"
#include "tests/parallel/train/run_trace.h"
#include "tests/support/scratch_dir.h"

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
              const MemoryUses host = rank.device.memory_uses(MemoryKind::kHost);
              for (size_t item = 0; item < kNumMemoryItems; ++item) {
                const char* name = memory_item_name(static_cast<MemoryItem>(item));
                EXPECT_EQ(planned.bytes[item], uses.items[item].now) << where << ": " << name;
                EXPECT_EQ(planned.host_bytes[item], host.items[item].peak) << where << ": " << name << " on the host";
              }
              EXPECT_EQ(planned.disk_bytes, disk_bytes(training)) << where;
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

// State and weights in host memory and in files, and what carries them between there and the GPU.
TEST(DeviceMemory, OfOffloadedStateAndWeightsIsWhatThePlanSays) {
  struct Case {
    int zero_stage;
    const char* state;
    const char* weights;
    bool bf16;
  };
  const ScratchDir scratch;
  for (const DeviceBackend backend : {DeviceBackend::kNccl, DeviceBackend::kStaged}) {
    for (const Case& test : {Case{0, "cpu", "none", false},
                             {1, "nvme", "none", true},
                             {2, "cpu", "none", true},
                             {3, "nvme", "none", false},
                             {3, "cpu", "cpu", true},
                             {3, "cpu", "nvme", false},
                             {3, "nvme", "cpu", false},
                             {3, "nvme", "nvme", true}}) {
      TrainOptions options = model_xs();
      options.zero_stage = test.zero_stage;
      options.bf16 = test.bf16;
      options.offload_optimizer_device = test.state;
      options.offload_param_device = test.weights;
      if (test.state == std::string("nvme") || test.weights == std::string("nvme")) {
        options.nvme_path = scratch.path().string();
      }
      expect_plan_is_allocated(options, {1, 1, 2}, backend);
      expect_plan_is_allocated(options, {1, 2, 2}, backend);
    }
  }
}

}  // namespace
}  // namespace ashlar
