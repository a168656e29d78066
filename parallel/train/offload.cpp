#include "parallel/train/offload.h"

#include "parallel/train/training.h"

namespace ashlar {
namespace {

HomeKind home_kind(const std::string& device) {
  return device == "nvme" ? HomeKind::kFiles : device == "cpu" ? HomeKind::kHost : HomeKind::kDevice;
}

}  // namespace

OffloadConfig offload_config(const TrainOptions& options, int world_rank) {
  OffloadConfig config;
  config.state = home_kind(offload_optimizer_of(options));
  config.values = home_kind(offload_param_of(options));
  config.state_files.directory = config.value_files.directory = options.nvme_path;
  const std::optional<TestPoint> fault = parse_test_point("test-offload-fault", options.test_offload_fault);
  if (fault && fault->rank == world_rank) {
    (fault->file == "param" ? config.value_files : config.state_files).faults.fail_after = fault->bytes;
  }
  return config;
}

void check_offload_device(RankContext& rank, const TrainOptions& options) {
  const std::string device = offload_optimizer_of(options);
  agree(rank.world, [&] {
    if (rank.device.kind() != DeviceKind::kCpu) {
      return;
    }
    REQUIRE(device != "cpu", ErrorCode::kUsage,
            "{} has no use here: this run computes on the CPU, and the optimizer's state is in host memory already; "
            "leave it out, or give --offload-optimizer-device nvme with --nvme-path DIR",
            offload_optimizer_text(options));
    REQUIRE(offload_param_of(options) != "cpu", ErrorCode::kUsage,
            "--offload-param-device cpu has no use here: this run computes on the CPU, and the weights are in host "
            "memory already; nearest legal values: none, or nvme with --nvme-path DIR");
    const StateKinds kinds =
        state_kinds(compute_dtype(options), options.optimizer != "sgd", DeviceKind::kCpu, offload_config(options, 0));
    REQUIRE(device == "none" || kinds.count() > 0, ErrorCode::kUsage,
            "--offload-optimizer-device {} has no use with --optimizer sgd in fp32, which has no state; nearest legal "
            "value: none",
            device);
  });
}

}  // namespace ashlar
