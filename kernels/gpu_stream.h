// What a GPU's stream carries for its kernels: made by prepare_kernels, found by every dispatch.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/stream_place.h"
#include "kernels/plain_types.h"
#include "runtime/base/dtype.h"
#include "runtime/device/device.h"

namespace ashlar::kernels {

struct GpuStream {
  cuda::StreamPlace place;
  KernelOptions options;
  // Scratch of the kernels and workspace of cuBLASLt alike: in one stream they never run at once.
  Buffer workspace;
  std::unique_ptr<cuda::CublasLt> cublaslt;  // none with --gemm own

  cuda::StreamHandle handle() const { return place.handle; }
  // Pure. Throws when the workspace has fewer bytes.
  Scratch scratch(std::string_view op, size_t bytes) const;
};

// The state of a GPU's stream, whose GPU becomes the calling thread's current one; null for a stream of the CPU. Throws
// when prepare_kernels was not called for the stream.
GpuStream* gpu_of(Stream& stream, std::string_view op);

// Pure. Throws for types that GPUs have no kernels for.
Element element_of(std::string_view op, DType dtype);
// Pure. The same for gradients of parameters, which are fp32 or bf16.
Element gradient_element_of(std::string_view op, DType dtype);

}  // namespace ashlar::kernels
