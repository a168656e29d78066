#include "kernels/cuda/embedding.h"

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

// A warp per row and stretch of columns.
constexpr int kWarps = 8;
constexpr int kWarpPacks = 4;
constexpr int kWarpColumns = kWarpPacks * 32 * kPack;

DEVICE_INLINE int64_t warp_row() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
}
DEVICE_INLINE int64_t pack_column(int pack) {
  return static_cast<int64_t>(blockIdx.y) * kWarpColumns + (pack * 32 + static_cast<int>(threadIdx.x)) * kPack;
}
dim3 row_grid(int64_t rows, int64_t columns) {
  return dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps),
              static_cast<unsigned>((columns + kWarpColumns - 1) / kWarpColumns));
}
const dim3 kRowBlock(32, kWarps);

__global__ void __launch_bounds__(32 * kWarps)
    embedding_forward_kernel(float* y, const int32_t* tokens, const float* table, int64_t num_tokens, int64_t columns,
                             int64_t vocab_begin, int64_t num_valid, bool wide) {
  const int64_t n = warp_row();
  if (n >= num_tokens) {
    return;
  }
  const int64_t row = tokens[n] - vocab_begin;
  const bool is_mine = row >= 0 && row < num_valid;
#pragma unroll
  for (int i = 0; i < kWarpPacks; ++i) {
    const int64_t column = pack_column(i);
    const Pack p = is_mine ? load_pack(table + row * columns + column, columns - column, wide) : Pack{};
    store_pack(y + n * columns + column, p, columns - column, wide);
  }
}

// The warp of a token's first occurrence adds all its rows in ascending order; the others find an earlier occurrence
// and leave. Needs no sorting, no scratch and no atomics. What it costs is reading tokens: about (different tokens) x N
// / 2 of them for every 512 columns, 4 GB from the second-level cache at N = 65536 and C = 768.
__global__ void __launch_bounds__(32 * kWarps)
    embedding_backward_kernel(float* dtable, const float* dy, const int32_t* tokens, int64_t num_tokens,
                              int64_t columns, int64_t vocab_begin, int64_t num_valid, bool wide) {
  const int64_t n = warp_row();
  if (n >= num_tokens) {
    return;
  }
  const int lane = threadIdx.x;
  const int32_t token = tokens[n];
  const int64_t row = token - vocab_begin;
  if (row < 0 || row >= num_valid) {
    return;
  }
  for (int64_t base = n - 32; base > -32; base -= 32) {  // backwards: frequent tokens meet one soon
    const int64_t i = base + lane;
    if (__any_sync(kAllLanes, i >= 0 && tokens[i] == token)) {
      return;
    }
  }
  Pack totals[kWarpPacks];
#pragma unroll
  for (int i = 0; i < kWarpPacks; ++i) {
    totals[i] = load_pack(dtable + row * columns + pack_column(i), columns - pack_column(i), wide);
  }
  for (int64_t base = n; base < num_tokens; base += 32) {
    const int64_t candidate = base + lane;
    uint32_t found = __ballot_sync(kAllLanes, candidate < num_tokens && tokens[candidate] == token);
    for (; found != 0; found &= found - 1) {
      const float* from = dy + (base + __ffs(static_cast<int>(found)) - 1) * columns;
#pragma unroll
      for (int i = 0; i < kWarpPacks; ++i) {
        const Pack p = load_pack(from + pack_column(i), columns - pack_column(i), wide);
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
          totals[i].v[k] += p.v[k];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpPacks; ++i) {
    store_pack(dtable + row * columns + pack_column(i), totals[i], columns - pack_column(i), wide);
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    position_forward_kernel(float* y, const float* table, int64_t rows, int64_t length, int64_t columns, bool wide) {
  const int64_t row = warp_row();
  if (row >= rows) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kWarpPacks; ++i) {
    const int64_t column = pack_column(i);
    const Pack position = load_pack(table + row % length * columns + column, columns - column, wide);
    Pack p = load_pack(y + row * columns + column, columns - column, wide);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      p.v[k] += position.v[k];
    }
    store_pack(y + row * columns + column, p, columns - column, wide);
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    position_backward_kernel(float* dtable, const float* dy, int64_t batch, int64_t length, int64_t table_length,
                             int64_t columns, bool add, bool wide) {
  const int64_t t = warp_row();
  if (t >= table_length || (add && t >= length)) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kWarpPacks; ++i) {
    const int64_t column = pack_column(i);
    const int64_t left = columns - column;
    Pack sum = {};
    for (int64_t b = 0; b < batch && t < length; ++b) {
      const Pack p = load_pack(dy + (b * length + t) * columns + column, left, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        sum.v[k] += p.v[k];
      }
    }
    float* to = dtable + t * columns + column;
    if (add) {
      const Pack before = load_pack(to, left, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        sum.v[k] = before.v[k] + sum.v[k];
      }
    }
    store_pack(to, sum, left, wide);
  }
}

}  // namespace

void embedding_forward(float* y, const int32_t* tokens, const float* table, int64_t num_tokens, int64_t columns,
                       int64_t vocab_begin, int64_t num_valid, StreamHandle stream) {
  if (num_tokens * columns == 0) {
    return;
  }
  LAUNCH(embedding_forward_kernel, row_grid(num_tokens, columns), kRowBlock, 0, stream, y, tokens, table, num_tokens,
         columns, vocab_begin, num_valid, can_be_wide({y, table}, columns));
}

void embedding_backward(float* dtable, const float* dy, const int32_t* tokens, int64_t num_tokens, int64_t columns,
                        int64_t vocab_begin, int64_t num_valid, StreamHandle stream) {
  if (num_tokens * columns == 0) {
    return;
  }
  LAUNCH(embedding_backward_kernel, row_grid(num_tokens, columns), kRowBlock, 0, stream, dtable, dy, tokens, num_tokens,
         columns, vocab_begin, num_valid, can_be_wide({dtable, dy}, columns));
}

void position_forward(float* y, const float* table, int64_t batch, int64_t length, int64_t columns,
                      StreamHandle stream) {
  if (batch * length * columns == 0) {
    return;
  }
  LAUNCH(position_forward_kernel, row_grid(batch * length, columns), kRowBlock, 0, stream, y, table, batch * length,
         length, columns, can_be_wide({y, table}, columns));
}

void position_backward(float* dtable, const float* dy, int64_t batch, int64_t length, int64_t table_length,
                       int64_t columns, bool add, StreamHandle stream) {
  if (table_length * columns == 0) {
    return;
  }
  LAUNCH(position_backward_kernel, row_grid(table_length, columns), kRowBlock, 0, stream, dtable, dy, batch, length,
         table_length, columns, add, can_be_wide({dtable, dy}, columns));
}

}  // namespace ashlar::kernels::cuda
