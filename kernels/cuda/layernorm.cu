// A row lives in the registers of one warp, or of several for wide rows, so it is read once, and the variance is summed
// from centered values (E[x^2] - E[x]^2 loses all digits when the mean is large).
#include "kernels/cuda/layernorm.h"

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

// kPacks packs per thread of kWarps warps hold up to kColumns columns. Narrow rows share a block.
template <int kPacks_, int kWarps_>
struct RowShape {
  static constexpr int kPacks = kPacks_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kColumns = kPacks * kThreads * kPack;
  static constexpr int kRows = kWarps == 1 ? 4 : 1;  // per block
  static DEVICE_INLINE int column(int pack) { return (pack * kThreads + static_cast<int>(threadIdx.x)) * kPack; }
};

// Calls function(RowShape{}) with the smallest shape that holds the columns.
template <typename Function>
void with_row_shape(int64_t columns, Function function) {
  if (columns <= RowShape<1, 1>::kColumns) {
    function(RowShape<1, 1>{});
  } else if (columns <= RowShape<4, 1>::kColumns) {
    function(RowShape<4, 1>{});
  } else if (columns <= RowShape<4, 2>::kColumns) {
    function(RowShape<4, 2>{});
  } else if (columns <= RowShape<4, 4>::kColumns) {
    function(RowShape<4, 4>{});
  } else if (columns <= RowShape<4, 8>::kColumns) {
    function(RowShape<4, 8>{});
  } else {
    static_assert(RowShape<4, 16>::kColumns == kMaxLayernormColumns);
    function(RowShape<4, 16>{});
  }
}

template <typename Row>
__global__ void __launch_bounds__(Row::kThreads* Row::kRows)
    forward_kernel(float* y, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                   int64_t rows, int columns, float epsilon, bool wide) {
  SMEM_STATIC(float, sums, Row::kWarps);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * Row::kRows + threadIdx.y;
  if (row >= rows) {  // of several rows in a block, each is one warp's, and no barrier follows
    return;
  }
  const int thread = threadIdx.x;
  const float* x_row = x + row * columns;
  float* y_row = y + row * columns;
  Pack values[Row::kPacks];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Row::kPacks; ++i) {
    values[i] = load_pack(x_row + Row::column(i), columns - Row::column(i), wide);
    sum += (values[i].v[0] + values[i].v[1]) + (values[i].v[2] + values[i].v[3]);
  }
  const float m = block_sum<Row::kWarps>(sum, sums, thread) / static_cast<float>(columns);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < Row::kPacks; ++i) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float centered = Row::column(i) + k < columns ? values[i].v[k] - m : 0.0f;
      values[i].v[k] = centered;
      squares += centered * centered;
    }
  }
  const float variance = block_sum<Row::kWarps>(squares, sums, thread) / static_cast<float>(columns);
  const float s = 1.0f / sqrtf(variance + epsilon);
#pragma unroll
  for (int i = 0; i < Row::kPacks; ++i) {
    const int column = Row::column(i);
    const Pack g = load_pack(gamma + column, columns - column, wide);
    const Pack b = load_pack(beta + column, columns - column, wide);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      values[i].v[k] = values[i].v[k] * s * g.v[k] + b.v[k];
    }
    store_pack(y_row + column, values[i], columns - column, wide);
  }
  if (thread == 0) {
    mean[row] = m;
    rstd[row] = s;
  }
}

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
template <typename Row>
__global__ void __launch_bounds__(Row::kThreads* Row::kRows)
    backward_kernel(float* dx, float* partials, const float* dy, const float* dresidual, const float* x,
                    const float* gamma, const float* mean, const float* rstd, int64_t rows, int columns, bool wide) {
  SMEM_STATIC(float, sums, Row::kWarps);
  SMEM_STATIC(Pack, shared_totals, Row::kRows > 1 ? 2 * Row::kPacks * Row::kThreads : 1);
  const int thread = threadIdx.x;
  Pack gamma_total[Row::kPacks] = {};
  Pack beta_total[Row::kPacks] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * Row::kRows;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * Row::kRows + threadIdx.y; row < rows; row += step) {
    const int64_t at = row * columns;
    const float m = mean[row];
    const float s = rstd[row];
    Pack normed[Row::kPacks];
    Pack scaled[Row::kPacks];  // dy gamma
    float average = 0;
    float weighted = 0;
#pragma unroll
    for (int i = 0; i < Row::kPacks; ++i) {
      const int column = Row::column(i);
      const int left = columns - column;
      const Pack d = load_pack(dy + at + column, left, wide);
      const Pack g = load_pack(gamma + column, left, wide);
      normed[i] = load_pack(x + at + column, left, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        normed[i].v[k] = (normed[i].v[k] - m) * s;
        scaled[i].v[k] = d.v[k] * g.v[k];  // 0 beyond the row
        average += scaled[i].v[k];
        weighted += scaled[i].v[k] * normed[i].v[k];
        gamma_total[i].v[k] += d.v[k] * normed[i].v[k];
        beta_total[i].v[k] += d.v[k];
      }
    }
    average = block_sum<Row::kWarps>(average, sums, thread) / static_cast<float>(columns);
    weighted = block_sum<Row::kWarps>(weighted, sums, thread) / static_cast<float>(columns);
#pragma unroll
    for (int i = 0; i < Row::kPacks; ++i) {
      const int column = Row::column(i);
      const int left = columns - column;
      Pack out = dresidual == nullptr ? Pack{} : load_pack(dresidual + at + column, left, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        out.v[k] += s * (scaled[i].v[k] - average - normed[i].v[k] * weighted);
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
        Pack* shared_gamma = shared_totals + 2 * i * Row::kThreads + thread;
        Pack* shared_beta = shared_gamma + Row::kThreads;
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

// dgamma and dbeta (blockIdx.y 0 and 1): 8 packs of columns per block, whose 32 rows of threads take every 32nd partial
// row and then add up in ascending order.
constexpr int kSumPacks = 8;
constexpr int kSumRows = 32;
__global__ void __launch_bounds__(kSumPacks* kSumRows)
    sum_partials_kernel(float* dgamma, float* dbeta, const float* partials, int num_partials, int columns, bool wide) {
  SMEM_STATIC(Pack, sums, kSumPacks * kSumRows);
  const int column = (static_cast<int>(blockIdx.x) * kSumPacks + static_cast<int>(threadIdx.x)) * kPack;
  const int left = columns - column;
  const float* from = partials + static_cast<int64_t>(blockIdx.y) * num_partials * columns + column;
  Pack total = {};
#pragma unroll 4
  for (int i = threadIdx.y; i < num_partials; i += kSumRows) {
    const Pack p = load_pack(from + static_cast<int64_t>(i) * columns, left, wide);
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
  store_pack((blockIdx.y == 0 ? dgamma : dbeta) + column, total, left, wide);
}

}  // namespace

void layernorm_forward(float* y, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                       int64_t rows, int64_t columns, double epsilon, StreamHandle stream) {
  if (rows * columns == 0) {
    return;
  }
  const bool wide = can_be_wide({y, x, gamma, beta}, columns);
  with_row_shape(columns, [&](auto shape) {
    using Row = decltype(shape);
    const dim3 grid(static_cast<unsigned>((rows + Row::kRows - 1) / Row::kRows));
    LAUNCH(forward_kernel<Row>, grid, dim3(Row::kThreads, Row::kRows), 0, stream, y, mean, rstd, x, gamma, beta, rows,
           columns, epsilon, wide);
  });
}

size_t layernorm_backward_scratch_bytes(int64_t rows, int64_t columns) {
  int64_t groups = 0;
  with_row_shape(columns, [&](auto shape) { groups = num_groups<decltype(shape)>(rows); });
  return static_cast<size_t>(2 * groups * columns) * sizeof(float);
}

void layernorm_backward(float* dx, float* dgamma, float* dbeta, const float* dy, const float* dresidual, const float* x,
                        const float* gamma, const float* mean, const float* rstd, int64_t rows, int64_t columns,
                        float* scratch, StreamHandle stream) {
  if (columns == 0) {
    return;
  }
  const bool wide = can_be_wide({dx, dy, dresidual, x, gamma, dgamma, dbeta, scratch}, columns);
  int64_t groups = 0;
  with_row_shape(columns, [&](auto shape) {
    using Row = decltype(shape);
    groups = num_groups<Row>(rows);
    if (groups > 0) {
      LAUNCH(backward_kernel<Row>, dim3(static_cast<unsigned>(groups)), dim3(Row::kThreads, Row::kRows), 0, stream, dx,
             scratch, dy, dresidual, x, gamma, mean, rstd, rows, columns, wide);
    }
  });
  constexpr int64_t kColumnsPerBlock = kSumPacks * kPack;
  const dim3 grid(static_cast<unsigned>((columns + kColumnsPerBlock - 1) / kColumnsPerBlock), 2);
  LAUNCH(sum_partials_kernel, grid, dim3(kSumPacks, kSumRows), 0, stream, dgamma, dbeta, scratch, groups, columns,
         wide);
}

}  // namespace ashlar::kernels::cuda
