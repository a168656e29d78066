#include "kernels/cuda/launch_check.h"

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

}  // namespace ashlar::kernels::cuda
