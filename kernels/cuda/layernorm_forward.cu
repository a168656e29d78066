// A row is read once, and the variance is summed from centered values (E[x^2] - E[x]^2 loses all digits when the mean
// is large).
#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/layernorm.cuh"

namespace ashlar::kernels::cuda {
namespace {

// The rows to normalise are a, or, when b is not null, a + b + bias, which is then kept in `sum`.
template <typename Row, typename T = typename Row::T>
__global__ void __launch_bounds__(Row::kThreads* Row::kRows)
    layernorm_forward_kernel(T* y, T* sum, float* mean, float* rstd, const T* a, const T* b, const T* bias,
                             const T* gamma, const T* beta, int64_t rows, int columns, float epsilon, bool wide) {
  constexpr int kPack = Row::kPack;
  SMEM_STATIC(float, sums, Row::kWarps);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * Row::kRows + threadIdx.y;
  if (row >= rows) {  // of several rows in a block, each is one warp's, and no barrier follows
    return;
  }
  const int thread = threadIdx.x;
  const int64_t at = row * columns;
  Pack<kPack> values[Row::kPacks];
  float total = 0;
#pragma unroll
  for (int i = 0; i < Row::kPacks; ++i) {
    const int column = Row::column(i);
    const int left = columns - column;
    values[i] = load_pack<kPack>(a + at + column, left, wide);
    if (b != nullptr) {
      const auto p = load_pack<kPack>(b + at + column, left, wide);
      const auto q = bias == nullptr ? Pack<kPack>{} : load_pack<kPack>(bias + column, left, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        values[i].v[k] = to_float(from_float<T>(values[i].v[k] + p.v[k] + q.v[k]));
      }
      store_pack(sum + at + column, values[i], left, wide);
    }
#pragma unroll
    for (int k = 0; k < kPack; k += 4) {
      total += (values[i].v[k] + values[i].v[k + 1]) + (values[i].v[k + 2] + values[i].v[k + 3]);
    }
  }
  const float m = block_sum<Row::kWarps>(total, sums, thread) / static_cast<float>(columns);
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
    const int left = columns - column;
    const auto g = load_pack<kPack>(gamma + column, left, wide);
    const auto z = load_pack<kPack>(beta + column, left, wide);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      values[i].v[k] = values[i].v[k] * s * g.v[k] + z.v[k];
    }
    store_pack(y + at + column, values[i], left, wide);
  }
  if (thread == 0) {
    mean[row] = m;
    rstd[row] = s;
  }
}

}  // namespace

void residual_layernorm_forward(Element element, void* y, void* sum, float* mean, float* rstd, const void* a,
                                const void* b, const void* bias, const void* gamma, const void* beta, int64_t rows,
                                int64_t columns, double epsilon, StreamHandle stream) {
  if (rows * columns == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    const bool wide = can_be_wide<T, kPackOf<T>>({y, sum, a, b, bias, gamma, beta}, columns);
    with_row_shape<T>(columns, [&](auto shape) {
      using Row = decltype(shape);
      const dim3 grid(static_cast<unsigned>((rows + Row::kRows - 1) / Row::kRows));
      LAUNCH(layernorm_forward_kernel<Row>, grid, dim3(Row::kThreads, Row::kRows), 0, stream, y, sum, mean, rstd, a, b,
             bias, gamma, beta, rows, columns, epsilon, wide);
    });
  });
}

void layernorm_forward(Element element, void* y, float* mean, float* rstd, const void* x, const void* gamma,
                       const void* beta, int64_t rows, int64_t columns, double epsilon, StreamHandle stream) {
  residual_layernorm_forward(element, y, nullptr, mean, rstd, x, nullptr, nullptr, gamma, beta, rows, columns, epsilon,
                             stream);
}

}  // namespace ashlar::kernels::cuda
