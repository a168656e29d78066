#include "runtime/comm/device_world.h"

#include "runtime/comm/nccl/nccl_world.h"
#include "runtime/comm/staged/staged.h"
#include "runtime/device/cuda/cuda_device.h"

namespace ashlar {
namespace {

std::unique_ptr<Device> device_of(const DeviceRequest& request) {
  return request.kind == DeviceKind::kCuda ? make_cuda_device(request.gpu_index) : nullptr;
}

std::unique_ptr<Communicator> world_of(RankContext& host, Device& device, const DeviceRequest& request) {
  switch (request.backend) {
    case DeviceBackend::kHost:
      REQUIRE(request.kind == DeviceKind::kCpu, ErrorCode::kUsage,
              "--distributed-backend mpi does not carry memory of a GPU: give nccl or staged, or --device cpu");
      return nullptr;
    case DeviceBackend::kStaged:
      return make_staged(host.world, device, request.staging_bytes);
    case DeviceBackend::kNccl:
      REQUIRE(request.kind == DeviceKind::kCuda, ErrorCode::kUsage,
              "--distributed-backend nccl carries memory of GPUs only: give mpi, or --device cuda");
      return make_nccl_world(host, device, request.init_timeout_seconds);
  }
  throw Error(ErrorCode::kInternal, "no such backend");
}

}  // namespace

DeviceWorld::DeviceWorld(RankContext& host, const DeviceRequest& request)
    : device_(device_of(request)),
      world_(world_of(host, device_ != nullptr ? *device_ : host.device, request)),
      context_{device_ != nullptr ? *device_ : host.device,
               host.world,
               world_ != nullptr ? *world_ : host.world,
               host.recorder,
               host.log,
               host.place} {}

DeviceWorld::~DeviceWorld() = default;

}  // namespace ashlar
