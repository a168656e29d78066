#include "kernels/cuda/reduce.h"

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/gradient_element.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;

// One block of threads per block of numbers. Thread t takes packs t, t + 256, ...; squares of floats are exact in fp64,
// so only the sums round, and zeros behind the end change nothing.
template <typename T>
__global__ void __launch_bounds__(kThreads) sum_of_squares_kernel(double* blocks, const T* x, int64_t n, bool wide) {
  SMEM_STATIC(double, sums, kThreads / 32);
  const int64_t begin = blockIdx.x * kNormBlock;
  const int64_t left = n - begin < kNormBlock ? n - begin : kNormBlock;
  const int thread = threadIdx.x;
  double sum = 0;
#pragma unroll
  for (int i = 0; i < kNormBlock / (kThreads * kPack); ++i) {
    const int64_t at = (i * kThreads + thread) * kPack;
    const auto p = load_pack<kPack>(x + begin + at, left - at, wide);
#pragma unroll
    for (float v : p.v) {
      sum += static_cast<double>(v) * static_cast<double>(v);
    }
  }
  sum = block_sum<kThreads / 32>(sum, sums, thread);
  if (thread == 0) {
    blocks[blockIdx.x] = sum;
  }
}

// A chain of additions cannot be shared, so one thread adds what the block has fetched. Meant for a step's losses, some
// ten thousand numbers, and for the blocks of a tensor's norm.
template <typename T>
__global__ void __launch_bounds__(kThreads) sum_in_order_kernel(double* total, const T* x, int64_t n) {
  constexpr int kTile = 4 * kThreads;
  SMEM_STATIC(T, tile, kTile);
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kTile) {
    for (int i = threadIdx.x; i < kTile; i += kThreads) {
      tile[i] = begin + i < n ? x[begin + i] : T{0};
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = n - begin < kTile ? static_cast<int>(n - begin) : kTile;
      for (int i = 0; i < count; ++i) {
        sum += static_cast<double>(tile[i]);
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *total = sum;
  }
}

}  // namespace

void sum_of_squares(double* blocks, const void* x, Element element, int64_t n, StreamHandle stream) {
  if (n == 0) {
    return;
  }
  with_gradient_element(element, [&](auto zero) {
    using T = decltype(zero);
    LAUNCH(sum_of_squares_kernel<T>, dim3(static_cast<unsigned>((n + kNormBlock - 1) / kNormBlock)), dim3(kThreads), 0,
           stream, blocks, x, n, can_be_wide<T, kPack>({x}));
  });
}

void sum_in_order(double* total, const float* x, int64_t n, StreamHandle stream) {
  LAUNCH(sum_in_order_kernel<float>, dim3(1), dim3(kThreads), 0, stream, total, x, n);
}

void sum_in_order(double* total, const double* x, int64_t n, StreamHandle stream) {
  LAUNCH(sum_in_order_kernel<double>, dim3(1), dim3(kThreads), 0, stream, total, x, n);
}

}  // namespace ashlar::kernels::cuda
