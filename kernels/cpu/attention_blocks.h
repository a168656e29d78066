// What the two passes of attention share. Both work on blocks of 128 queries x 128 keys and keep scores with keys as
// rows and queries as lanes: then the keys and values of a block are read as they lie, a softmax over keys is
// elementwise over lanes, and only the queries (and output gradients) of a block are transposed, once per block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/tile.h"

namespace ashlar::kernels::cpu {

// With rows of qkv 9 KB apart (GPT-2), the keys of one head share a quarter of the second-level cache, so every pass
// over them comes from the third: 128 queries per pass are 4 % faster than 64 at T = 1024, and 256 no better.
inline constexpr int kAttentionBlock = 128;

// One matrix [T,D] of one batch and head inside a tensor whose rows are further apart.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  T* operator[](int64_t row) const { return data + row * stride; }
};

template <typename T>
struct Head {
  Rows<T> q, k, v;  // [T,D] each, inside qkv or dqkv
};
template <typename T>
Head<T> head_of(T* qkv, const AttentionSizes& s, int64_t b, int64_t h) {
  const int64_t width = s.heads * s.head_dim;
  T* first = qkv + b * s.sequence * 3 * width + h * s.head_dim;
  return {{first, 3 * width}, {first + width, 3 * width}, {first + 2 * width, 3 * width}};
}
template <typename T>
Rows<T> rows_of(T* out, const AttentionSizes& s, int64_t b, int64_t h) {
  const int64_t width = s.heads * s.head_dim;
  return {out + b * s.sequence * width + h * s.head_dim, width};
}

// Scores are computed in panels of two vectors of queries.
template <typename T>
inline constexpr int kPanel = 2 * kLanes<T>;

// to [rows up to a whole panel, padded] = factor * from [rows, dim], zeros elsewhere. S = Compute<T>.
template <typename T, typename S>
void pack(S* to, int padded, Rows<const T> from, int64_t first, int rows, int dim, S factor) {
  for (int r = 0; r < rows; ++r) {
    const T* source = from[first + r];
    S* row = to + r * padded;
    for (int d = 0; d < dim; ++d) {
      row[d] = factor * widen(source[d]);
    }
    std::fill(row + dim, row + padded, S(0));
  }
  std::fill(to + rows * padded, to + round_up(rows, kPanel<S>) * padded, S(0));
}

// Room for the rows of a block as S, where they do not lie in memory as such.
template <typename T>
struct alignas(kBlockAlignment) WideRows {
  Compute<T> data[kAttentionBlock * kMaxHeadDim];
};
template <>
struct WideRows<float> {};
template <>
struct WideRows<double> {};

// Rows [first, first + rows) as a product reads them: where they lie, or widened into `room`.
template <typename T>
Rows<const Compute<T>> readable(WideRows<T>& room, int padded, Rows<const T> from, int64_t first, int rows, int dim) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return {from[first], from.stride};
  } else {
    pack(room.data, padded, from, first, rows, dim, Compute<T>(1));
    return {room.data, padded};
  }
}

// to [columns, kAttentionBlock] = from [rows up to a whole panel, columns] transposed. Strips of one cache line of
// `to`: writing whole columns would touch lines 512 bytes apart, which share an eighth of the first-level cache (3
// times slower).
template <typename T>
void transpose(T* to, const T* from, int rows, int columns) {
  constexpr int kStrip = kBlockAlignment / static_cast<int>(sizeof(T));
  for (int first = 0; first < rows; first += kStrip) {
    const int strip = std::min(kStrip, round_up(rows, kPanel<T>) - first);
    for (int column = 0; column < columns; ++column) {
      for (int r = first; r < first + strip; ++r) {
        to[column * kAttentionBlock + r] = from[r * columns + column];
      }
    }
  }
}

// Scores and what is made from them are [keys, kAttentionBlock queries]. On the diagonal block query c sees keys 0..c:
// scores are computed by whole panels, zeroed where the key is later, and products start or end at the diagonal.

// Keys that some query of the panel at `column` can see.
template <typename T>
int visible_keys(bool diagonal, int column, int keys) {
  return diagonal ? std::min(keys, column + kPanel<T>) : keys;
}

// c [queries, dim] += scores^T [queries, keys] b [keys, dim]; on the diagonal, later keys are skipped.
template <typename T>
void add_over_keys(T* c, int dim, const T* scores, const T* b, int64_t b_row, int queries, int keys, bool diagonal) {
  for (int q = 0; q < queries; q += kTileRows) {
    const int rows = std::min(kTileRows, queries - q);
    const int depth = diagonal ? std::min(keys, q + rows) : keys;
    block_product(c + q * dim, dim, rows, dim, scores + q, 1, kAttentionBlock, b, b_row, depth, true);
  }
}

// c [keys, dim] = scores [keys, queries] b [queries, dim]; on the diagonal, earlier queries are skipped.
template <typename T>
void product_over_queries(T* c, int dim, const T* scores, const T* b, int queries, int keys, bool diagonal) {
  for (int k = 0; k < keys; k += kTileRows) {
    const int first = diagonal ? k : 0;
    block_product(c + k * dim, dim, std::min(kTileRows, keys - k), dim, scores + k * kAttentionBlock + first,
                  kAttentionBlock, 1, b + first * dim, dim, queries - first, false);
  }
}

}  // namespace ashlar::kernels::cpu
