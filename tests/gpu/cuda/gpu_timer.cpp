#include "tests/gpu/gpu_timer.h"

#include <cuda_runtime_api.h>

#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda/cuda_stream.h"

namespace ashlar {
namespace {

// The runtime's own events carry no time, so these are made here.
class CudaTimer final : public StreamTimer {
 public:
  explicit CudaTimer(CudaStream& stream) : stream_(stream) {
    use_cuda_device(stream.device_index());
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~CudaTimer() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  void start() override { check(cudaEventRecord(begin_, stream_.handle()), "cudaEventRecord"); }
  void stop() override { check(cudaEventRecord(end_, stream_.handle()), "cudaEventRecord"); }
  double seconds() override {
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  void check(cudaError_t status, const char* call) const { check_cuda(status, call, stream_.device_index()); }

  CudaStream& stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::unique_ptr<StreamTimer> make_stream_timer(Stream& stream) {
  return std::make_unique<CudaTimer>(cuda_stream(stream));
}

bool figures_are_real() {
  return true;
}

}  // namespace ashlar
