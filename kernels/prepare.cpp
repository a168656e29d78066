#include "kernels/prepare.h"

#include "runtime/base/error.h"

namespace ashlar::kernels {

void prepare_kernels(Stream& stream, const KernelOptions&) {
  REQUIRE(stream.device().kind() == DeviceKind::kCpu, ErrorCode::kUsage, "kernels exist for the CPU only");
}

size_t kernel_workspace_bytes(DeviceKind) {
  return 0;
}

}  // namespace ashlar::kernels
