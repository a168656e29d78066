#include "kernels/cuda/stream_place.h"

#include "runtime/device/cuda/cuda_stream.h"

namespace ashlar::kernels::cuda {

StreamPlace place_of(Stream& stream) {
  const CudaStream& place = cuda_stream(stream);
  return {place.handle(), place.device_index()};
}

void use_gpu(int device_index) {
  use_cuda_device(device_index);
}

}  // namespace ashlar::kernels::cuda
