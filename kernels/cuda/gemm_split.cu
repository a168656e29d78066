// The second stage of a matrix product whose sum over k was cut into splits.
#include "kernels/cuda/gemm_epilogue.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Four sums, added in the order of the splits.
DEVICE_INLINE float4 sum_splits(const GemmArgs& args, int64_t at) {
  const int64_t size = static_cast<int64_t>(args.m) * args.n;
  auto sum = load16<float4>(args.partial + at);
  for (int split = 1; split < args.num_splits; ++split) {
    const auto part = load16<float4>(args.partial + split * size + at);
    sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads) gemm_sum_splits_f32_kernel(GemmArgs args) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (at < static_cast<int64_t>(args.m) * args.n) {
    finish_four(static_cast<float*>(args.c), args.add, sum_splits(args, at), at);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gemm_sum_splits_kernel(GemmArgs args) {
  // In eights of 32-bit index, because nvcc calls a function that uses the stack for a 64-bit remainder.
  const unsigned eight = blockIdx.x * kThreads + threadIdx.x;
  const int64_t at = static_cast<int64_t>(eight) * 8;
  if (at < static_cast<int64_t>(args.m) * args.n) {
    const float4 low = sum_splits(args, at);
    const float4 high = sum_splits(args, at + 4);
    finish_eight<T>(args, {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}}, at,
                    static_cast<int>(eight % static_cast<unsigned>(args.n / 8) * 8));
  }
}

}  // namespace

void launch_gemm_sum_splits(Element element, const GemmArgs& args, StreamHandle stream) {
  const int64_t per_block = kThreads * (args.to_f32 ? 4 : 8);
  const int64_t size = static_cast<int64_t>(args.m) * args.n;
  const dim3 grid(static_cast<unsigned>((size + per_block - 1) / per_block));
  if (args.to_f32) {
    LAUNCH(gemm_sum_splits_f32_kernel, grid, dim3(kThreads), 0, stream, args);
  } else if (element == Element::kBf16) {
    LAUNCH(gemm_sum_splits_kernel<__nv_bfloat16>, grid, dim3(kThreads), 0, stream, args);
  } else {
    LAUNCH(gemm_sum_splits_kernel<__half>, grid, dim3(kThreads), 0, stream, args);
  }
}

}  // namespace ashlar::kernels::cuda
