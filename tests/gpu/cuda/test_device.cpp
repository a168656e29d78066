// The first GPU, for the case lists of tests/emulation.
#include "tests/emulation/kernels/test_device.h"

#include <cuda_runtime_api.h>

#include "runtime/device/cuda/cuda_check.h"

namespace ashlar::test_device {
namespace {

void check(cudaError_t status, const char* call) {
  check_cuda(status, call, 0);
}

}  // namespace

void* allocate(size_t bytes) {
  void* memory = nullptr;
  if (bytes > 0) {
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    check(cudaMemset(memory, 0xff, bytes), "cudaMemset");
  }
  return memory;
}

void release(void* memory) {
  report_cuda(cudaFree(memory), "cudaFree", 0);
}

void write(void* device, const void* host, size_t bytes) {
  check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void read(void* host, const void* device, size_t bytes) {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

int num_runs() {
  return 2;
}

void begin_run(int) {}

std::vector<std::string> end_runs() {
  return {};
}

}  // namespace ashlar::test_device
