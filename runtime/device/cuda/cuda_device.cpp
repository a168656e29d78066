#include "runtime/device/cuda/cuda_device.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda/cuda_stream.h"

namespace ashlar {
namespace {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return fmt::format("GPU {}", index_); }
  std::unique_ptr<Event> create_event() override { return std::make_unique<CudaEvent>(index_); }
  std::optional<int64_t> unheld_bytes() const override {
    use_cuda_device(index_);
    size_t free = 0;
    size_t total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo", index_);
    return static_cast<int64_t>(free);
  }

 protected:
  std::unique_ptr<Stream> make_stream(StreamPriority priority) override {
    return std::make_unique<CudaStream>(*this, index_, priority);
  }

  std::byte* allocate_bytes(MemoryKind kind, size_t bytes) override {
    use_cuda_device(index_);
    void* data = nullptr;
    const bool on_device = kind == MemoryKind::kDevice;
    const cudaError_t status = on_device ? cudaMalloc(&data, bytes) : cudaMallocHost(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check_cuda(status, on_device ? "cudaMalloc" : "cudaMallocHost", index_);
    return static_cast<std::byte*>(data);
  }

  void free_bytes(MemoryKind kind, std::byte* data, size_t) noexcept override {
    if (kind == MemoryKind::kDevice) {
      report_cuda(cudaFree(data), "cudaFree", index_);
    } else {
      report_cuda(cudaFreeHost(data), "cudaFreeHost", index_);
    }
  }

 private:
  int index_;
};

}  // namespace

int num_cuda_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  // Without a driver the call fails with "insufficient driver" and leaves the count alone.
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice) {
    cudaGetLastError();
    return 0;
  }
  check_cuda(status, "cudaGetDeviceCount", 0);
  return count;
}

std::unique_ptr<Device> make_cuda_device(int index) {
  const int count = num_cuda_devices();
  REQUIRE(index >= 0 && index<count, ErrorCode::kUsage, "there is no CUDA device {}: this process sees {} GPUs{}",
                              index, count, count> 0
              ? fmt::format(", 0 to {}", count - 1)
              : "");
  return std::make_unique<CudaDevice>(index);
}

}  // namespace ashlar
