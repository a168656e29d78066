#include "kernels/gpu_matmul.h"

#include "kernels/cuda/activation.h"
#include "kernels/cuda/gemm.h"
#include "runtime/base/error.h"

namespace ashlar::kernels {
namespace {

using cuda::Epilogue;
using cuda::MatmulCall;

bool takes_own(const GpuStream& gpu, const MatmulCall& call) {
  const bool has_activation =
      call.epilogue == Epilogue::kBiasActivation || call.epilogue == Epilogue::kActivationBackward;
  return gpu.options.gemm == GemmKind::kOwn ||
         (gpu.options.gemm == GemmKind::kAuto && has_activation && cuda::gemm_supports(call));
}

void by_cublaslt(GpuStream& gpu, const MatmulCall& call) {
  REQUIRE(gpu.cublaslt->supports(call), ErrorCode::kUsage,
          "--gemm: cuBLASLt does not take the product [{},{}] x [{},{}] (a {}, b {})", call.m, call.k, call.k, call.n,
          call.transpose_a ? "transposed" : "plain", call.transpose_b ? "transposed" : "plain");
  gpu.cublaslt->matmul(call, gpu.handle());
}

// The product alone, then what was to be fused with it.
void in_two_kernels(GpuStream& gpu, const MatmulCall& call) {
  MatmulCall product = call;
  product.epilogue = Epilogue::kNone;
  switch (call.epilogue) {
    case Epilogue::kBiasActivation:
      product.c = call.pre;
      product.epilogue = call.bias == nullptr ? Epilogue::kNone : Epilogue::kBias;
      by_cublaslt(gpu, product);
      cuda::activation_forward(call.input, call.c, call.pre, call.m * call.n, call.activation, gpu.handle());
      break;
    case Epilogue::kActivationBackward:
      by_cublaslt(gpu, product);
      cuda::activation_backward(call.input, call.c, call.c, call.pre, call.m * call.n, call.activation, gpu.handle());
      break;
    case Epilogue::kNone:
    case Epilogue::kBias:
      by_cublaslt(gpu, call);
      break;
  }
}

}  // namespace

void gpu_matmul(GpuStream& gpu, const MatmulCall& call) {
  if (takes_own(gpu, call)) {
    cuda::gemm(call, gpu.scratch("matmul", cuda::gemm_supports(call) ? cuda::gemm_scratch_bytes(call) : 0),
               gpu.handle());
  } else if (gpu.cublaslt->supports(call)) {
    gpu.cublaslt->matmul(call, gpu.handle());
  } else {
    in_two_kernels(gpu, call);
  }
}

}  // namespace ashlar::kernels
