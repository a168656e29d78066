#include "kernels/cuda/bias.h"

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/partial_rows.h"

namespace ashlar::kernels::cuda {
namespace {

// A block takes a stripe of 256 columns, 8 per lane, and every num_groups-th set of 8 rows, a warp each.
constexpr int kWarps = 8;
constexpr int kLaneColumns = 8;
constexpr int kColumns = 32 * kLaneColumns;

int64_t num_stripes(int64_t columns) {
  return (columns + kColumns - 1) / kColumns;
}

// Blocks for each stripe: about 1024 in all, which is several for each multiprocessor of today's GPUs, but no more than
// give every warp four rows. Of the shape alone, so that bits do not depend on the GPU.
int64_t num_groups(int64_t rows, int64_t columns) {
  const int64_t wanted = 1024 / num_stripes(columns);
  const int64_t most = rows / (4 * kWarps);
  const int64_t groups = wanted < most ? wanted : most;
  return groups < 1 ? 1 : groups;
}

// partials [groups, columns]
template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    bias_backward_kernel(float* partials, const T* dy, int64_t rows, int64_t columns, bool wide) {
  constexpr int kPack = kPackOf<T>;
  constexpr int kPacks = kLaneColumns / kPack;
  SMEM_STATIC(Pack<kPack>, sums, kPacks * kWarps * 32);
  const int lane = threadIdx.x;
  const int warp = threadIdx.y;
  const int64_t first_column = static_cast<int64_t>(blockIdx.y) * kColumns + lane * kPack;
  Pack<kPack> totals[kPacks] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
#pragma unroll 4
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < rows; row += step) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int64_t column = first_column + i * 32 * kPack;
      const auto p = load_pack<kPack>(dy + row * columns + column, columns - column, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        totals[i].v[k] += p.v[k];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    sums[(i * kWarps + warp) * 32 + lane] = totals[i];
  }
  __syncthreads();
  if (warp != 0) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    for (int w = 1; w < kWarps; ++w) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        totals[i].v[k] += sums[(i * kWarps + w) * 32 + lane].v[k];
      }
    }
    const int64_t column = first_column + i * 32 * kPack;
    store_pack(partials + blockIdx.x * columns + column, totals[i], columns - column, wide);
  }
}

}  // namespace

size_t bias_backward_scratch_bytes(int64_t rows, int64_t columns) {
  return columns == 0 ? 0 : static_cast<size_t>(num_groups(rows, columns) * columns) * sizeof(float);
}

void bias_backward(Element element, float* db, const void* dy, int64_t rows, int64_t columns, bool add, Scratch scratch,
                   StreamHandle stream) {
  if (columns == 0) {
    return;
  }
  check_scratch("bias_backward", scratch.bytes, bias_backward_scratch_bytes(rows, columns));
  auto* partials = static_cast<float*>(scratch.data);
  const int64_t groups = num_groups(rows, columns);
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(num_stripes(columns)));
    LAUNCH(bias_backward_kernel<T>, grid, dim3(32, kWarps), 0, stream, partials, dy, rows, columns,
           can_be_wide<T, kPackOf<T>>({dy}, columns) && can_be_wide<float, 4>({partials}));
  });
  sum_partial_rows(db, nullptr, partials, groups, columns, add, stream);
}

}  // namespace ashlar::kernels::cuda
