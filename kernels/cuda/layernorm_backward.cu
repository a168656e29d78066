#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/layernorm.cuh"
#include "kernels/cuda/partial_rows.h"

namespace ashlar::kernels::cuda {
namespace {

// Blocks of the backward pass: each walks every num_groups-th row (or four rows) and leaves one partial row of dgamma
// and of dbeta. The number is fixed, and not the GPU's, so that bits do not depend on it; an H200's 132 multiprocessors
// hold four blocks of 128 threads and 128 registers each, or two of 256.
template <typename Row>
int64_t num_groups(int64_t rows) {
  constexpr int64_t kMost = Row::kThreads * Row::kRows <= 128 ? 512 : 256;
  const int64_t blocks = (rows + Row::kRows - 1) / Row::kRows;
  return blocks < kMost ? blocks : kMost;
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - avg(g) - n avg(g n)), averages over the row.
// partials: dgamma [groups, columns], then dbeta [groups, columns].
template <typename Row, typename T = typename Row::T>
__global__ void __launch_bounds__(Row::kThreads* Row::kRows)
    layernorm_backward_kernel(T* dx, float* partials, const T* dy, const T* dresidual, const T* x, const T* gamma,
                              const float* mean, const float* rstd, int64_t rows, int columns, bool wide) {
  constexpr int kPack = Row::kPack;
  SMEM_STATIC(float, sums, Row::kWarps);
  SMEM_STATIC(Pack<kPack>, shared_totals, Row::kRows > 1 ? 2 * Row::kPacks * Row::kThreads : 1);
  const int thread = threadIdx.x;
  Pack<kPack> gamma_total[Row::kPacks] = {};
  Pack<kPack> beta_total[Row::kPacks] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * Row::kRows;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * Row::kRows + threadIdx.y; row < rows; row += step) {
    const int64_t at = row * columns;
    const float m = mean[row];
    const float s = rstd[row];
    // Kept as they came: of 16 bits, half the registers. What is not kept is read again, from the caches.
    RawPack<T, kPack> x_kept[Row::kPacks];
    RawPack<T, kPack> dy_kept[Row::kKeepsTwo ? Row::kPacks : 1];
    float average = 0;
    float weighted = 0;
#pragma unroll
    for (int i = 0; i < Row::kPacks; ++i) {
      const int column = Row::column(i);
      const int left = columns - column;
      const auto dy_raw = load_raw<kPack>(dy + at + column, left, wide);
      if constexpr (Row::kKeepsTwo) {
        dy_kept[i] = dy_raw;
      }
      x_kept[i] = load_raw<kPack>(x + at + column, left, wide);
      const auto g = load_pack<kPack>(gamma + column, left, wide);
      const auto d = unpack<T, kPack>(dy_raw);  // 0 beyond the row
      const auto v = unpack<T, kPack>(x_kept[i]);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float normed = (v.v[k] - m) * s;
        const float scaled = d.v[k] * g.v[k];
        average += scaled;
        weighted += scaled * normed;
        gamma_total[i].v[k] += d.v[k] * normed;
        beta_total[i].v[k] += d.v[k];
      }
    }
    average = block_sum<Row::kWarps>(average, sums, thread) / static_cast<float>(columns);
    weighted = block_sum<Row::kWarps>(weighted, sums, thread) / static_cast<float>(columns);
#pragma unroll
    for (int i = 0; i < Row::kPacks; ++i) {
      const int column = Row::column(i);
      const int left = columns - column;
      const auto g = load_pack<kPack>(gamma + column, left, wide);
      const auto d = unpack<T, kPack>(Row::kKeepsTwo ? dy_kept[Row::kKeepsTwo ? i : 0]
                                                     : load_raw<kPack>(dy + at + column, left, wide));
      const auto v = unpack<T, kPack>(x_kept[i]);
      auto out = dresidual == nullptr ? Pack<kPack>{} : load_pack<kPack>(dresidual + at + column, left, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        out.v[k] += s * (d.v[k] * g.v[k] - average - (v.v[k] - m) * s * weighted);
      }
      store_pack(dx + at + column, out, left, wide);
    }
  }
  // The warps of a block add up in ascending order.
  for (int turn = 0; turn < Row::kRows; ++turn) {
    if (static_cast<int>(threadIdx.y) == turn) {
#pragma unroll
      for (int i = 0; i < Row::kPacks; ++i) {
        const int column = Row::column(i);
        Pack<kPack>* shared_gamma = shared_totals + 2 * i * Row::kThreads + thread;
        Pack<kPack>* shared_beta = shared_gamma + Row::kThreads;
        if (turn > 0) {
#pragma unroll
          for (int k = 0; k < kPack; ++k) {
            gamma_total[i].v[k] += shared_gamma->v[k];
            beta_total[i].v[k] += shared_beta->v[k];
          }
        }
        if (turn < Row::kRows - 1) {
          *shared_gamma = gamma_total[i];
          *shared_beta = beta_total[i];
        } else {
          float* out = partials + static_cast<int64_t>(blockIdx.x) * columns + column;
          store_pack(out, gamma_total[i], columns - column, wide);
          store_pack(out + static_cast<int64_t>(gridDim.x) * columns, beta_total[i], columns - column, wide);
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace

size_t layernorm_backward_scratch_bytes(int64_t rows, int64_t columns) {
  int64_t groups = 0;
  with_row_shape<float>(columns, [&](auto shape) { groups = num_groups<decltype(shape)>(rows); });
  return static_cast<size_t>(2 * groups * columns) * sizeof(float);
}

void layernorm_backward(Element element, void* dx, float* dgamma, float* dbeta, const void* dy, const void* dresidual,
                        const void* x, const void* gamma, const float* mean, const float* rstd, int64_t rows,
                        int64_t columns, Scratch scratch, StreamHandle stream) {
  if (columns == 0) {
    return;
  }
  check_scratch("layernorm_backward", scratch.bytes, layernorm_backward_scratch_bytes(rows, columns));
  auto* partials = static_cast<float*>(scratch.data);
  int64_t groups = 0;
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const bool wide = can_be_wide<T, kPackOf<T>>({dx, dy, dresidual, x, gamma}, columns) &&
                      can_be_wide<float, kPackOf<T>>({partials}, columns);
    with_row_shape<T>(columns, [&](auto shape) {
      using Row = decltype(shape);
      groups = num_groups<Row>(rows);
      if (groups > 0) {
        LAUNCH(layernorm_backward_kernel<Row>, dim3(static_cast<unsigned>(groups)), dim3(Row::kThreads, Row::kRows), 0,
               stream, dx, partials, dy, dresidual, x, gamma, mean, rstd, rows, columns, wide);
      }
    });
  });
  sum_partial_rows(dgamma, dbeta, partials, groups, columns, false, stream);
}

}  // namespace ashlar::kernels::cuda
