#include "kernels/cuda/launch_check.h"

#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_check.h"

namespace ashlar::kernels::cuda {

void check_launch(int cuda_error, const char* kernel) {
  if (cuda_error == cudaSuccess) {
    return;
  }
  int device_index = -1;
  cudaGetDevice(&device_index);
  check_cuda(static_cast<cudaError_t>(cuda_error), kernel, device_index);
}

void check_limit(const char* op, const char* quantity, int64_t value, int64_t limit, const char* flag) {
  REQUIRE(value <= limit, ErrorCode::kUsage, "{}: {} {}; a GPU takes at most {} ({})", op, value, quantity, limit,
          flag);
}

void check_scratch(const char* op, size_t bytes, size_t needed_bytes) {
  DCHECK(bytes >= needed_bytes, "{}: {} bytes of scratch, {} needed", op, bytes, needed_bytes);
}

}  // namespace ashlar::kernels::cuda
