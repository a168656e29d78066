// From a rank on its host to a rank on its device.
#pragma once

#include <memory>

#include "runtime/comm/launch.h"

namespace ashlar {

// Owns this rank's device and the world over its memory. On a CPU both are those of the host.
class DeviceWorld {
 public:
  // Collective. Blocks the host. Throws kUsage for a GPU that is not there and for a backend that does not carry the
  // device's memory. `host` outlives it.
  DeviceWorld(RankContext& host, const DeviceRequest& request);
  // Collective where NCCL is the backend. After all that was made from context().
  ~DeviceWorld();
  DeviceWorld(const DeviceWorld&) = delete;
  DeviceWorld& operator=(const DeviceWorld&) = delete;

  RankContext& context() { return context_; }

 private:
  std::unique_ptr<Device> device_;       // null: that of the host
  std::unique_ptr<Communicator> world_;  // null: that of the host
  RankContext context_;
};

}  // namespace ashlar
