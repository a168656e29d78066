// What data ranks share out, gather and sum beside the computation, and keep on the host, changes no bit of training on
// GPUs that the emulator and the stand-ins play.
#include <gmock/gmock.h>

#include "tests/parallel/train/device_run.h"
#include "tests/parallel/train/offload_support.h"

namespace ashlar {
namespace {

using namespace test;

class ShardingOnDevice : public testing::TestWithParam<DeviceBackend> {};

// Gathered and reduced at once, or beside the computation: the same bits.
TEST_P(ShardingOnDevice, OverlapGivesEqualBits) {
  TrainOptions options = model_xxs();
  options.grad_reduce = "micro-batch";
  options.ddp_bucket_size = 1;
  const GridShape grid{1, 2, 2};
  const TinySource source = source_of(options);
  const RunTrace expected = run_steps(options, grid, source, 2, on_gpus(GetParam()));
  for (const auto& [stage, overlap] : {std::pair{1, true}, {3, false}, {3, true}}) {
    options.zero_stage = stage;
    options.overlap_grad_reduce = options.overlap_param_gather = overlap;
    const RunTrace trace = run_steps(options, grid, source, 2, on_gpus(GetParam()));
    EXPECT_TRUE(trace.same_bits(expected)) << "stage " << stage << (overlap ? " overlapped" : "");
    EXPECT_EQ(trace.weights, expected.weights) << "stage " << stage << (overlap ? " overlapped" : "");
  }
}

// The same in windows of many passes: layers that stay from one pass to the next, or come for the next.
TEST_P(ShardingOnDevice, OverlapInLongWindowsGivesEqualBits) {
  TrainOptions options = model_xxs();
  options.grad_reduce = "step";
  const GridShape grid{1, 1, 2};
  const TinySource source = source_of(options);
  const RunTrace expected = run_steps(options, grid, source, 2, on_gpus(GetParam()));
  options.zero_stage = 3;
  options.overlap_grad_reduce = options.overlap_param_gather = true;
  for (const char* schedule : {"1f1b", "gpipe"}) {
    options.pipeline_schedule = schedule;
    const RunTrace trace = run_steps(options, grid, source, 2, on_gpus(GetParam()));
    EXPECT_TRUE(trace.same_bits(expected)) << schedule;
    EXPECT_EQ(trace.weights, expected.weights) << schedule;
  }
}

// Sums between groups of data ranks wait for those within beside the computation.
TEST_P(ShardingOnDevice, OverlapOfInstancesGivesEqualBits) {
  TrainOptions options = model_xxs();
  options.num_distributed_optimizer_instances = 2;
  const GridShape grid{1, 1, 4};
  const TinySource source = source_of(options);
  for (const auto& [stage, reduction] : {std::pair{1, "step"}, {2, "micro-batch"}}) {
    options.zero_stage = stage;
    options.grad_reduce = reduction;
    options.overlap_grad_reduce = false;
    const RunTrace expected = run_steps(options, grid, source, 2, on_gpus(GetParam()));
    options.overlap_grad_reduce = true;
    EXPECT_TRUE(run_steps(options, grid, source, 2, on_gpus(GetParam())).same_bits(expected)) << stage;
  }
}

// What data ranks share out changes no bit, and a checkpoint puts it together again.
TEST_P(ShardingOnDevice, SharedOutStateGivesEqualBits) {
  TrainOptions options = model_xxs();
  options.bf16 = true;
  const GridShape grid{1, 2, 2};
  const TinySource source = source_of(options);
  const RunTrace expected = run_steps(options, grid, source, 3, on_gpus(GetParam()));
  const ScratchDir scratch;
  RunHooks hooks;
  hooks.behind_step = [&](Training& training, const StepResult& result) {
    if (result.step == 2) {
      save_training(training, scratch / "run", 1);
    }
  };
  options.zero_stage = 1;
  const RunTrace shared_out = run_steps(options, grid, source, 3, on_gpus(GetParam()), hooks);
  EXPECT_EQ(shared_out.losses, expected.losses);
  EXPECT_EQ(shared_out.grad_norms, expected.grad_norms);
  EXPECT_EQ(shared_out.weights, expected.weights);
  hooks = {};
  hooks.prepare = [&](Training& training) { EXPECT_TRUE(load_training(training, scratch / "run", 1).has_value()); };
  const RunTrace resumed = run_steps(options, grid, source, 1, on_gpus(GetParam()), hooks);
  EXPECT_EQ(resumed.losses.back(), expected.losses.back());
  EXPECT_EQ(resumed.weights, expected.weights);
}

// State in host memory or in files beside a GPU: the CPU's kernels update it, so the numbers are close, and both homes
// give the same bits, overlapped or not.
TEST_P(ShardingOnDevice, OffloadedStateIsUpdatedByTheHost) {
  const ScratchDir scratch;
  for (const auto& [stage, bf16] : {std::pair{1, false}, {0, true}, {2, true}, {3, true}}) {
    TrainOptions options = model_xxs();
    options.bf16 = bf16;
    options.zero_stage = stage;
    const GridShape grid{1, 1, 2};
    const RunTrace resident = run_steps(options, grid, source_of(options), 2, on_gpus(GetParam()));
    options.offload_optimizer_device = "cpu";
    RunHooks hooks;
    hooks.prepare = [](Training& training) { EXPECT_EQ(training.optimizer.state_bytes(), 0u); };
    const RunTrace host = run_steps(options, grid, source_of(options), 2, on_gpus(GetParam()), hooks);
    EXPECT_LE(worst_difference(host.losses, resident.losses), bf16 ? 1e-3 : kLoss);
    EXPECT_LE(worst_difference(host.weights, resident.weights), bf16 ? 1e-2 : 1e-5);
    options.offload_optimizer_device = "nvme";
    options.nvme_path = scratch.path().string();
    options.overlap_param_gather = true;
    EXPECT_TRUE(run_steps(options, grid, source_of(options), 2, on_gpus(GetParam()), hooks).same_bits(host));
  }
}

// The weights too: they come from the host or from files on a stream of their own, gathered or, of one data rank, not.
// Wherever state and weights lie, the bits are those of the run whose state alone is elsewhere.
TEST_P(ShardingOnDevice, OffloadedWeightsChangeNoBit) {
  const ScratchDir scratch;
  for (const auto& [grid, bf16] :
       {std::pair{GridShape{1, 1, 1}, true}, {GridShape{1, 1, 2}, false}, {GridShape{1, 2, 2}, true}}) {
    TrainOptions options = model_xxs();
    options.bf16 = bf16;
    options.zero_stage = 3;
    options.offload_optimizer_device = "cpu";
    const RunTrace on_gpu = run_steps(options, grid, source_of(options), 2, on_gpus(GetParam()));
    for (const auto& [state, weights] : {std::pair{"cpu", "cpu"}, {"cpu", "nvme"}, {"nvme", "cpu"}, {"nvme", "nvme"}}) {
      const std::string where =
          fmt::format("{} {} state {} weights {}", grid.text(), bf16 ? "bf16" : "fp32", state, weights);
      TrainOptions elsewhere = options;
      elsewhere.offload_optimizer_device = state;
      elsewhere.offload_param_device = weights;
      const bool files = where.find("nvme") != std::string::npos;
      elsewhere.nvme_path = files ? scratch.path().string() : "";
      elsewhere.overlap_param_gather = elsewhere.offload_optimizer_device == elsewhere.offload_param_device;
      RunHooks hooks;
      hooks.prepare = [&](Training& training) {
        ASSERT_NE(training.store.value_home(), nullptr);
        EXPECT_EQ(training.store.value_home()->reads_files(), elsewhere.offload_param_device == "nvme") << where;
        EXPECT_EQ(training.rank.device.memory_uses(MemoryKind::kDevice).of(MemoryItem::kParameters).now, 0) << where;
      };
      const RunTrace trace = run_steps(elsewhere, grid, source_of(options), 2, on_gpus(GetParam()), hooks);
      EXPECT_TRUE(trace.same_bits(on_gpu)) << where;
      EXPECT_EQ(trace.weights, on_gpu.weights) << where;
    }
  }
}

// State in host memory and weights in a file, so that their disk is the only one.
TEST_P(ShardingOnDevice, DiskOfWeightsThatFailsEndsTheJobAtOnce) {
  const ScratchDir scratch;
  TrainOptions options = with_weights_in_files(model_xxs(), scratch);
  options.offload_optimizer_device = "cpu";
  const int64_t bytes = file_bytes(with_grid(options, {1, 1, 2}), 1, on_gpus(GetParam())).weights;
  for (const auto& [written, stand] : {std::pair{2 * bytes, "UPDATE"}, {2 * bytes - 1, "0F0"}}) {
    options.test_offload_fault = fmt::format("rank=1,bytes={},file=param", written);
    EXPECT_THAT(expect_failed_disk_ends_job(options, on_gpus(GetParam())), testing::HasSubstr(stand));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ShardingOnDevice, testing::Values(DeviceBackend::kStaged, DeviceBackend::kNccl),
                         [](const auto& instance) { return name_of(instance.param); });

}  // namespace
}  // namespace ashlar
