// Linked where the CUDA toolkit was not found.
#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/facts.h"

namespace ashlar {

int num_cuda_devices() {
  return 0;
}

std::unique_ptr<Device> make_cuda_device(int index) {
  throw Error(ErrorCode::kUsage,
              fmt::format("CUDA device {} was asked for, but this build has no CUDA: the toolkit was not found when it "
                          "was configured",
                          index));
}

void gather_cuda_facts(RankFacts&, const RankPlace&, const DeviceJob&) {}

}  // namespace ashlar
