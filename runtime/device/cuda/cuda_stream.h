// Streams and events of a GPU, for the folders that call CUDA (kernels/cuda, comm/nccl). Includes CUDA's headers, so
// only those folders may include this file.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/device/device.h"

namespace ashlar {

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int device_index);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool reached() const override;
  void synchronize() const override;
  cudaEvent_t handle() const { return handle_; }

 private:
  int device_index_;
  cudaEvent_t handle_ = nullptr;
};

class CudaStream final : public Stream {
 public:
  CudaStream(Device& device, int device_index, StreamPriority priority);
  ~CudaStream() override;  // Blocks the host until the work is done, as every stream of this runtime does.
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Device& device() const override { return device_; }
  void copy(void* dst, const void* src, size_t bytes) override;
  void fill_zero(void* dst, size_t bytes) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;

  int device_index() const { return device_index_; }
  cudaStream_t handle() const { return handle_; }

 private:
  Device& device_;
  int device_index_;
  cudaStream_t handle_ = nullptr;
};

// Pure. The stream as a CUDA stream; throws when it belongs to another kind of device.
CudaStream& cuda_stream(Stream& stream);

// Makes the GPU the calling thread's current one, which launches, allocations and memsets need. Cheap when it is so
// already.
void use_cuda_device(int device_index);

}  // namespace ashlar
