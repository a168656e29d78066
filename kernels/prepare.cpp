#include "kernels/prepare.h"

#include "kernels/gpu_stream.h"
#include "runtime/base/error.h"

namespace ashlar::kernels {
namespace {

constexpr size_t kWorkspaceBytes = cuda::kCublasLtWorkspaceBytes;

}  // namespace

void prepare_kernels(Stream& stream, const KernelOptions& options) {
  if (stream.device().kind() == DeviceKind::kCpu) {
    return;
  }
  DCHECK(stream.attached() == nullptr, "prepare_kernels was called before for this stream");
  auto gpu = std::make_shared<GpuStream>();
  gpu->place = cuda::place_of(stream);
  gpu->options = options;
  gpu->workspace = stream.device().allocate(kWorkspaceBytes, "workspace of the kernels", MemoryItem::kKernels);
  if (options.gemm != GemmKind::kOwn) {
    cuda::use_gpu(gpu->place.device_index);
    gpu->cublaslt = std::make_unique<cuda::CublasLt>(gpu->place.device_index, options.allow_tf32,
                                                     gpu->scratch("prepare_kernels", kWorkspaceBytes));
  }
  stream.attach(std::move(gpu));
}

size_t kernel_workspace_bytes(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? 0 : kWorkspaceBytes;
}

Scratch GpuStream::scratch(std::string_view op, size_t bytes) const {
  DCHECK(bytes <= workspace.bytes(), "{} needs {} bytes of scratch, a stream has {}", op, bytes, workspace.bytes());
  return {workspace.data(), workspace.bytes()};
}

GpuStream* gpu_of(Stream& stream, std::string_view op) {
  if (stream.device().kind() == DeviceKind::kCpu) {
    return nullptr;
  }
  auto* gpu = static_cast<GpuStream*>(stream.attached());
  DCHECK(gpu != nullptr, "{}: prepare_kernels was not called for this stream", op);
  cuda::use_gpu(gpu->place.device_index);
  return gpu;
}

Element element_of(std::string_view op, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Element::kF32;
    case DType::kBF16:
      return Element::kBf16;
    case DType::kF16:
      return Element::kF16;
    default:
      throw Error(ErrorCode::kUsage,
                  fmt::format("{} on a GPU takes fp32, bf16 or fp16, not {}", op, dtype_name(dtype)));
  }
}

Element gradient_element_of(std::string_view op, DType dtype) {
  const Element element = element_of(op, dtype);
  DCHECK(element != Element::kF16, "{} takes gradients in fp32 or bf16, not in fp16", op);
  return element;
}

}  // namespace ashlar::kernels
