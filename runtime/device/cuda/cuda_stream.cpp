#include "runtime/device/cuda/cuda_stream.h"

#include "runtime/base/error.h"
#include "runtime/device/cuda/cuda_check.h"

namespace ashlar {
namespace {

// CUDA numbers priorities downwards: the greatest priority is the smallest number.
int cuda_priority(StreamPriority priority, int device_index) {
  int least = 0;
  int greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", device_index);
  return priority == StreamPriority::kCommunication ? greatest : least;
}

}  // namespace

void use_cuda_device(int device_index) {
  check_cuda(cudaSetDevice(device_index), "cudaSetDevice", device_index);
}

CudaEvent::CudaEvent(int device_index) : device_index_(device_index) {
  use_cuda_device(device_index);
  // Without timing a record costs no time stamp, and a wait of another stream none either.
  check_cuda(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "cudaEventCreateWithFlags", device_index);
}

CudaEvent::~CudaEvent() {
  report_cuda(cudaEventDestroy(handle_), "cudaEventDestroy", device_index_);
}

bool CudaEvent::reached() const {
  const cudaError_t status = cudaEventQuery(handle_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // "not ready" counts as an error that the next launch would report
    return false;
  }
  check_cuda(status, "cudaEventQuery", device_index_);
  return true;
}

void CudaEvent::synchronize() const {
  check_cuda(cudaEventSynchronize(handle_), "cudaEventSynchronize", device_index_);
}

CudaStream::CudaStream(Device& device, int device_index, StreamPriority priority)
    : device_(device), device_index_(device_index) {
  use_cuda_device(device_index);
  // Non-blocking: not ordered with the default stream, which libraries may use.
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, cuda_priority(priority, device_index)),
             "cudaStreamCreateWithPriority", device_index);
}

CudaStream::~CudaStream() {
  report_cuda(cudaStreamSynchronize(handle_), "cudaStreamSynchronize", device_index_);
  report_cuda(cudaStreamDestroy(handle_), "cudaStreamDestroy", device_index_);
}

void CudaStream::copy(void* dst, const void* src, size_t bytes) {
  if (bytes > 0) {
    // Unified addressing tells from the pointers which end is where.
    check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, handle_), "cudaMemcpyAsync", device_index_);
  }
}

void CudaStream::fill_zero(void* dst, size_t bytes) {
  if (bytes > 0) {
    use_cuda_device(device_index_);
    check_cuda(cudaMemsetAsync(dst, 0, bytes, handle_), "cudaMemsetAsync", device_index_);
  }
}

void CudaStream::record(Event& event) {
  check_cuda(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), handle_), "cudaEventRecord", device_index_);
}

void CudaStream::wait(const Event& event) {
  check_cuda(cudaStreamWaitEvent(handle_, static_cast<const CudaEvent&>(event).handle(), 0), "cudaStreamWaitEvent",
             device_index_);
}

void CudaStream::synchronize() {
  check_cuda(cudaStreamSynchronize(handle_), "cudaStreamSynchronize", device_index_);
}

CudaStream& cuda_stream(Stream& stream) {
  DCHECK(stream.device().kind() == DeviceKind::kCuda, "CUDA code was given a stream of another device");
  return static_cast<CudaStream&>(stream);
}

}  // namespace ashlar
