#include "runtime/device/cuda/cuda_check.h"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

std::string failure_text(cudaError_t status, const char* call, int device_index) {
  return fmt::format("CUDA device {} failed at {}: {} ({})", device_index, call, cudaGetErrorName(status),
                     cudaGetErrorString(status));
}

}  // namespace

void check_cuda(cudaError_t status, const char* call, int device_index, std::source_location place) {
  if (status != cudaSuccess) {
    cudaGetLastError();  // else the next kernel launch would report it again
    throw Error(ErrorCode::kInternal, failure_text(status, call, device_index), place);
  }
}

void report_cuda(cudaError_t status, const char* call, int device_index) noexcept {
  if (status != cudaSuccess) {
    cudaGetLastError();
    if (std::uncaught_exceptions() > 0) {
      return;  // the error on its way up says more than the hundreds of objects that it leaves behind
    }
    fmt::print(stderr, "{}\n", failure_text(status, call, device_index));
  }
}

}  // namespace ashlar
