#include "kernels/cuda/embedding.h"

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

// A warp per row and stretch of columns.
constexpr int kWarps = 8;
constexpr int kWarpPacks = 4;

DEVICE_INLINE int64_t warp_row() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
}
template <int kPack>
DEVICE_INLINE int64_t pack_column(int pack) {
  return (static_cast<int64_t>(blockIdx.y) * kWarpPacks * 32 + pack * 32 + static_cast<int>(threadIdx.x)) * kPack;
}
dim3 row_grid(int64_t rows, int64_t columns, int columns_per_warp) {
  return dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps),
              static_cast<unsigned>((columns + columns_per_warp - 1) / columns_per_warp));
}
const dim3 kRowBlock(32, kWarps);

template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    embedding_forward_kernel(T* y, const int32_t* tokens, const T* table, int64_t num_tokens, int64_t columns,
                             int64_t vocab_begin, int64_t num_valid, bool wide) {
  constexpr int kPack = kPackOf<T>;
  const int64_t n = warp_row();
  if (n >= num_tokens) {
    return;
  }
  const int64_t row = tokens[n] - vocab_begin;
  const bool is_mine = row >= 0 && row < num_valid;
#pragma unroll
  for (int i = 0; i < kWarpPacks; ++i) {
    const int64_t column = pack_column<kPack>(i);
    const auto p = is_mine ? load_pack<kPack>(table + row * columns + column, columns - column, wide) : Pack<kPack>{};
    store_pack(y + n * columns + column, p, columns - column, wide);
  }
}

// A warp for each place in the sorted order that a token's first occurrence holds, and 128 columns; the others leave at
// once. The order is stable, so rows are added in ascending n. Rows are fetched eight at a time and then added one by
// one: a frequent token is a long chain of additions, but not of fetches. Four blocks to a multiprocessor are asked
// for, because ptxas on its own keeps to 48 registers for sm_90a and spills.
constexpr int kRowsAtOnce = 8;
template <typename T>
__global__ void __launch_bounds__(32 * kWarps, 4)
    embedding_backward_kernel(float* dtable, const T* dy, const int32_t* tokens, const int32_t* order,
                              int64_t num_tokens, int64_t columns, int64_t vocab_begin, int64_t num_valid, bool wide) {
  constexpr int kPack = 4;
  const int64_t first = warp_row();
  if (first >= num_tokens) {
    return;
  }
  const int lane = threadIdx.x;
  const int32_t token = tokens[order[first]];
  const int64_t row = token - vocab_begin;
  if (row < 0 || row >= num_valid || (first > 0 && tokens[order[first - 1]] == token)) {
    return;
  }
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + lane) * kPack;
  const int64_t left = columns - column;
  float* to = dtable + row * columns + column;
  auto total = load_pack<kPack>(to, left, wide);
  int count = 32;
  for (int64_t base = first; count == 32; base += 32) {
    const bool exists = base + lane < num_tokens;
    const int32_t n = exists ? order[base + lane] : 0;
    const uint32_t same = __ballot_sync(kAllLanes, exists && tokens[n] == token);
    count = same == kAllLanes ? 32 : __ffs(static_cast<int>(~same)) - 1;  // sorted: a run from lane 0 on
    for (int begin = 0; begin < count; begin += kRowsAtOnce) {
      RawPack<T, kPack> rows[kRowsAtOnce];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const int64_t source = __shfl_sync(kAllLanes, n, begin + r);
        rows[r] = load_raw<kPack>(dy + source * columns + column, begin + r < count ? left : 0, wide);
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const auto p = unpack<T, kPack>(rows[r]);
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
          total.v[k] = begin + r < count ? total.v[k] + p.v[k] : total.v[k];
        }
      }
    }
  }
  store_pack(to, total, left, wide);
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    position_forward_kernel(T* y, const T* table, int64_t rows, int64_t columns, SampleRows place, bool wide) {
  constexpr int kPack = kPackOf<T>;
  const int64_t row = warp_row();
  if (row >= rows) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kWarpPacks; ++i) {
    const int64_t column = pack_column<kPack>(i);
    const auto position =
        load_pack<kPack>(table + (place.first + row) % place.length * columns + column, columns - column, wide);
    auto p = load_pack<kPack>(y + row * columns + column, columns - column, wide);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      p.v[k] += position.v[k];
    }
    store_pack(y + row * columns + column, p, columns - column, wide);
  }
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    position_backward_kernel(float* dtable, const T* dy, int64_t rows, int64_t table_length, int64_t columns,
                             SampleRows place, bool add, bool wide) {
  constexpr int kPack = 4;
  const int64_t t = warp_row();
  const int64_t first = t < place.length ? (t + place.length - place.first % place.length) % place.length : rows;
  if (t >= table_length || (add && first >= rows)) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kWarpPacks; ++i) {
    const int64_t column = pack_column<kPack>(i);
    const int64_t left = columns - column;
    Pack<kPack> sum = {};
    for (int64_t row = first; row < rows; row += place.length) {
      const auto p = load_pack<kPack>(dy + row * columns + column, left, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        sum.v[k] += p.v[k];
      }
    }
    float* to = dtable + t * columns + column;
    if (add) {
      const auto before = load_pack<kPack>(to, left, wide);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        sum.v[k] = before.v[k] + sum.v[k];
      }
    }
    store_pack(to, sum, left, wide);
  }
}

}  // namespace

void embedding_forward(Element element, void* y, const int32_t* tokens, const void* table, int64_t num_tokens,
                       int64_t columns, int64_t vocab_begin, int64_t num_valid, StreamHandle stream) {
  if (num_tokens * columns == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = kPackOf<T>;
    LAUNCH(embedding_forward_kernel<T>, row_grid(num_tokens, columns, kWarpPacks * 32 * kPack), kRowBlock, 0, stream, y,
           tokens, table, num_tokens, columns, vocab_begin, num_valid, can_be_wide<T, kPack>({y, table}, columns));
  });
}

void embedding_backward(Element element, float* dtable, const void* dy, const int32_t* tokens, const int32_t* order,
                        int64_t num_tokens, int64_t columns, int64_t vocab_begin, int64_t num_valid,
                        StreamHandle stream) {
  if (num_tokens * columns == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    LAUNCH(embedding_backward_kernel<T>, row_grid(num_tokens, columns, 32 * 4), kRowBlock, 0, stream, dtable, dy,
           tokens, order, num_tokens, columns, vocab_begin, num_valid,
           can_be_wide<float, 4>({dtable}, columns) && can_be_wide<T, 4>({dy}));
  });
}

void position_forward(Element element, void* y, const void* table, int64_t rows, int64_t columns,
                      const SampleRows& place, StreamHandle stream) {
  if (rows * columns == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = kPackOf<T>;
    LAUNCH(position_forward_kernel<T>, row_grid(rows, columns, kWarpPacks * 32 * kPack), kRowBlock, 0, stream, y, table,
           rows, columns, place, can_be_wide<T, kPack>({y, table}, columns));
  });
}

void position_backward(Element element, float* dtable, const void* dy, int64_t rows, int64_t table_length,
                       int64_t columns, const SampleRows& place, bool add, StreamHandle stream) {
  if (table_length * columns == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    LAUNCH(position_backward_kernel<T>, row_grid(table_length, columns, kWarpPacks * 32 * 4), kRowBlock, 0, stream,
           dtable, dy, rows, table_length, columns, place, add,
           can_be_wide<float, 4>({dtable}, columns) && can_be_wide<T, 4>({dy}));
  });
}

}  // namespace ashlar::kernels::cuda
