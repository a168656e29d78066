#include "kernels/cuda/partial_rows.h"

#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

// blockIdx.y chooses the output. A block takes 8 packs of columns; its 32 rows of threads take every 32nd partial row
// and then add up in ascending order.
constexpr int kPack = 4;
constexpr int kSumPacks = 8;
constexpr int kSumRows = 32;

__global__ void __launch_bounds__(kSumPacks* kSumRows)
    sum_partial_rows_kernel(float* first, float* second, const float* partials, int64_t num_partials, int64_t columns,
                            bool add, bool wide) {
  SMEM_STATIC(Pack<kPack>, sums, kSumPacks * kSumRows);
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kSumPacks + threadIdx.x) * kPack;
  const int64_t left = columns - column;
  const float* from = partials + blockIdx.y * num_partials * columns + column;
  Pack<kPack> total = {};
#pragma unroll 4
  for (int64_t i = threadIdx.y; i < num_partials; i += kSumRows) {
    const auto p = load_pack<kPack>(from + i * columns, left, wide);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      total.v[k] += p.v[k];
    }
  }
  sums[threadIdx.y * kSumPacks + threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0) {
    return;
  }
  for (int row = 1; row < kSumRows; ++row) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      total.v[k] += sums[row * kSumPacks + threadIdx.x].v[k];
    }
  }
  float* to = (blockIdx.y == 0 ? first : second) + column;
  if (add) {
    const auto before = load_pack<kPack>(to, left, wide);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      total.v[k] += before.v[k];
    }
  }
  store_pack(to, total, left, wide);
}

}  // namespace

void sum_partial_rows(float* first, float* second, const float* partials, int64_t num_partials, int64_t columns,
                      bool add, StreamHandle stream) {
  if (columns == 0) {
    return;
  }
  constexpr int64_t kColumnsPerBlock = kSumPacks * kPack;
  const dim3 grid(static_cast<unsigned>((columns + kColumnsPerBlock - 1) / kColumnsPerBlock),
                  second == nullptr ? 1 : 2);
  LAUNCH(sum_partial_rows_kernel, grid, dim3(kSumPacks, kSumRows), 0, stream, first, second, partials, num_partials,
         columns, add, can_be_wide<float, kPack>({first, second, partials}, columns));
}

}  // namespace ashlar::kernels::cuda
