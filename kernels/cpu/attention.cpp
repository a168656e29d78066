// Both passes work on blocks of 128 queries x 128 keys and keep scores with keys as rows and queries as lanes: then the
// keys and values of a block are read as they lie, a softmax over keys is elementwise over lanes, and only the queries
// (and output gradients) of a block are transposed, once per block.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

namespace ashlar::kernels::cpu {
namespace {

// With rows of qkv 9 KB apart (GPT-2), the keys of one head share a quarter of the second-level cache, so every pass
// over them comes from the third: 128 queries per pass are 4 % faster than 64 at T = 1024, and 256 no better.
constexpr int kBlock = 128;

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

// to [rows up to a whole panel, padded] = factor * from [rows, dim], zeros elsewhere.
template <typename T>
void pack(T* to, int padded, Rows<const T> from, int64_t first, int rows, int dim, T factor) {
  for (int r = 0; r < rows; ++r) {
    const T* source = from[first + r];
    T* row = to + r * padded;
    for (int d = 0; d < dim; ++d) {
      row[d] = factor * source[d];
    }
    std::fill(row + dim, row + padded, T(0));
  }
  std::fill(to + rows * padded, to + round_up(rows, kPanel<T>) * padded, T(0));
}

// to [columns, kBlock] = from [rows up to a whole panel, columns] transposed. Strips of one cache line of `to`: writing
// whole columns would touch lines 512 bytes apart, which share an eighth of the first-level cache (3 times slower).
template <typename T>
void transpose(T* to, const T* from, int rows, int columns) {
  constexpr int kStrip = kBlockAlignment / static_cast<int>(sizeof(T));
  for (int first = 0; first < rows; first += kStrip) {
    const int strip = std::min(kStrip, round_up(rows, kPanel<T>) - first);
    for (int column = 0; column < columns; ++column) {
      for (int r = first; r < first + strip; ++r) {
        to[column * kBlock + r] = from[r * columns + column];
      }
    }
  }
}

// Scores and what is made from them are [keys, kBlock queries]. On the diagonal block query c sees keys 0..c, so the
// columns before `row` of a row are never read.

// Keys that the queries of the panel at `column` can see.
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
    block_product(c + q * dim, dim, rows, dim, scores + q, 1, kBlock, b, b_row, depth, true);
  }
}

// c [keys, dim] = scores [keys, queries] b [queries, dim]; on the diagonal, earlier queries are skipped.
template <typename T>
void product_over_queries(T* c, int dim, const T* scores, const T* b, int queries, int keys, bool diagonal) {
  for (int k = 0; k < keys; k += kTileRows) {
    const int first = diagonal ? k : 0;
    block_product(c + k * dim, dim, std::min(kTileRows, keys - k), dim, scores + k * kBlock + first, kBlock, 1,
                  b + first * dim, dim, queries - first, false);
  }
}

template <typename T>
struct alignas(kBlockAlignment) ForwardBlocks {
  T scores[kBlock * kBlock];        // [keys, queries]
  T query_t[kMaxHeadDim * kBlock];  // [D padded, queries], scaled
  T value[kBlock * kMaxHeadDim];    // [keys, D padded]; the queries before they are transposed
  T out[kBlock * kMaxHeadDim];      // [queries, D padded], not yet divided by the softmax denominator
  T largest[kBlock];                // of the scores seen so far
  T denominator[kBlock];
  T rescale[kBlock];
};

// Turns the scores of one column panel into exp(score - largest), and updates the running maximum and denominator.
template <typename T>
void online_softmax(ForwardBlocks<T>& x, int column, int keys, bool diagonal) {
  constexpr int kWidth = kPanel<T>;
  T largest[kWidth];
  T sum[kWidth] = {};
  std::copy(x.largest + column, x.largest + column + kWidth, largest);
  for (int k = 0; k < keys; ++k) {
    T* row = x.scores + k * kBlock + column;
    if (diagonal && k > column) {
      for (int c = 0; c < kWidth; ++c) {
        row[c] = column + c < k ? -std::numeric_limits<T>::infinity() : row[c];
      }
    }
    for (int c = 0; c < kWidth; ++c) {
      largest[c] = row[c] > largest[c] ? row[c] : largest[c];
    }
  }
  for (int k = 0; k < keys; ++k) {
    T* row = x.scores + k * kBlock + column;
    for (int c = 0; c < kWidth; ++c) {
      row[c] = exp_fast(row[c] - largest[c]);
      sum[c] += row[c];
    }
  }
  for (int c = 0; c < kWidth; ++c) {
    const T rescale = exp_fast(x.largest[column + c] - largest[c]);
    x.rescale[column + c] = rescale;
    x.denominator[column + c] = x.denominator[column + c] * rescale + sum[c];
    x.largest[column + c] = largest[c];
  }
}

// Queries [first, first + queries) of one head.
template <typename T>
void forward_block(Rows<T> out, T* lse, Head<const T> x, int64_t first, int queries, int dim, T scale) {
  ForwardBlocks<T> blocks;
  const int padded = padded_columns<T>(dim);
  pack(blocks.value, padded, x.q, first, queries, dim, scale);
  transpose(blocks.query_t, blocks.value, queries, padded);
  std::fill(blocks.out, blocks.out + queries * padded, T(0));
  std::fill(blocks.largest, blocks.largest + kBlock, -std::numeric_limits<T>::infinity());
  std::fill(blocks.denominator, blocks.denominator + kBlock, T(0));

  for (int64_t key = 0; key <= first; key += kBlock) {
    const bool diagonal = key == first;
    const int keys = diagonal ? queries : kBlock;
    pack(blocks.value, padded, x.v, key, keys, dim, T(1));
    for (int column = 0; column < queries; column += kPanel<T>) {
      const int visible = visible_keys<T>(diagonal, column, keys);
      block_product(blocks.scores + column, kBlock, visible, kPanel<T>, x.k[key], x.k.stride, 1,
                    blocks.query_t + column, kBlock, dim, false);
      online_softmax(blocks, column, visible, diagonal);
    }
    for (int q = 0; q < queries; ++q) {
      T* row = blocks.out + q * padded;
      if (blocks.rescale[q] != T(1)) {  // after a few blocks the largest score rarely changes
        for (int d = 0; d < padded; ++d) {
          row[d] *= blocks.rescale[q];
        }
      }
    }
    add_over_keys(blocks.out, padded, blocks.scores, blocks.value, padded, queries, keys, diagonal);
  }

  for (int q = 0; q < queries; ++q) {
    const T inverse = T(1) / blocks.denominator[q];
    T* row = out[first + q];
    for (int d = 0; d < dim; ++d) {
      row[d] = blocks.out[q * padded + d] * inverse;
    }
    lse[first + q] = blocks.largest[q] + std::log(blocks.denominator[q]);
  }
}

template <typename T>
struct alignas(kBlockAlignment) BackwardBlocks {
  T probability[kBlock * kBlock];   // [keys, queries]
  T dscore[kBlock * kBlock];        // [keys, queries]
  T query[kBlock * kMaxHeadDim];    // [queries, D padded], scaled
  T query_t[kMaxHeadDim * kBlock];  // [D padded, queries], scaled
  T dout[kBlock * kMaxHeadDim];     // [queries, D padded]
  T dout_t[kMaxHeadDim * kBlock];   // [D padded, queries]
  T dquery[kBlock * kMaxHeadDim];   // [queries, D padded]
  T key[kBlock * kMaxHeadDim];      // [keys, D padded]
  T dkey[kBlock * kMaxHeadDim];     // [keys, D padded]: of keys, then of values
  T lse[kBlock];
  T delta[kBlock];
};

// to (+)= from [rows, D padded].
template <typename T>
void write_rows(Rows<T> to, int64_t first, const T* from, int padded, int rows, int dim, bool accumulate) {
  for (int r = 0; r < rows; ++r) {
    T* row = to[first + r];
    for (int d = 0; d < dim; ++d) {
      row[d] = from[r * padded + d] + (accumulate ? row[d] : T(0));
    }
  }
}

// probability = exp(score - lse), dscore = probability * (dprobability - delta), over one column panel.
template <typename T>
void softmax_backward(BackwardBlocks<T>& x, int column, int keys, bool diagonal) {
  constexpr int kWidth = kPanel<T>;
  for (int k = 0; k < keys; ++k) {
    T* probability = x.probability + k * kBlock + column;
    T* dscore = x.dscore + k * kBlock + column;
    for (int c = 0; c < kWidth; ++c) {
      const T p = exp_fast(probability[c] - x.lse[column + c]);
      probability[c] = diagonal && column + c < k ? T(0) : p;
      dscore[c] = probability[c] * (dscore[c] - x.delta[column + c]);
    }
  }
}

// One head. Queries outside, keys inside: the gradients of a key are added in ascending order of query blocks.
template <typename T>
void backward_head(Head<T> dx, Rows<const T> dout, Head<const T> x, const T* lse, const T* delta, int64_t sequence,
                   int dim, T scale) {
  BackwardBlocks<T> blocks;
  const int padded = padded_columns<T>(dim);
  for (int64_t first = 0; first < sequence; first += kBlock) {
    const int queries = static_cast<int>(std::min<int64_t>(kBlock, sequence - first));
    pack(blocks.query, padded, x.q, first, queries, dim, scale);
    transpose(blocks.query_t, blocks.query, queries, padded);
    pack(blocks.dout, padded, dout, first, queries, dim, T(1));
    transpose(blocks.dout_t, blocks.dout, queries, padded);
    std::fill(blocks.dquery, blocks.dquery + queries * padded, T(0));
    for (int q = 0; q < kBlock; ++q) {
      blocks.lse[q] = q < queries ? lse[first + q] : T(0);
      blocks.delta[q] = q < queries ? delta[first + q] : T(0);
    }
    for (int64_t key = 0; key <= first; key += kBlock) {
      const bool diagonal = key == first;
      const int keys = diagonal ? queries : kBlock;
      pack(blocks.key, padded, x.k, key, keys, dim, T(1));
      for (int column = 0; column < queries; column += kPanel<T>) {
        const int visible = visible_keys<T>(diagonal, column, keys);
        block_product(blocks.probability + column, kBlock, visible, kPanel<T>, blocks.key, padded, 1,
                      blocks.query_t + column, kBlock, dim, false);
        block_product(blocks.dscore + column, kBlock, visible, kPanel<T>, x.v[key], x.v.stride, 1,
                      blocks.dout_t + column, kBlock, dim, false);
        softmax_backward(blocks, column, visible, diagonal);
      }
      product_over_queries(blocks.dkey, padded, blocks.probability, blocks.dout, queries, keys, diagonal);
      write_rows(dx.v, key, blocks.dkey, padded, keys, dim, !diagonal);
      product_over_queries(blocks.dkey, padded, blocks.dscore, blocks.query, queries, keys, diagonal);
      write_rows(dx.k, key, blocks.dkey, padded, keys, dim, !diagonal);
      add_over_keys(blocks.dquery, padded, blocks.dscore, blocks.key, padded, queries, keys, diagonal);
    }
    for (int i = 0; i < queries * padded; ++i) {
      blocks.dquery[i] *= scale;
    }
    write_rows(dx.q, first, blocks.dquery, padded, queries, dim, false);
  }
}

// delta = sum over d of dout * out: the part of a score's gradient that all keys of a query share.
template <typename T>
void row_products(T* delta, Rows<const T> dout, Rows<const T> out, int64_t sequence, int dim) {
  constexpr int kSums = 16;  // independent partial sums, so that the loop is not bound by the latency of one addition
  for (int64_t t = 0; t < sequence; ++t) {
    const T* a = dout[t];
    const T* b = out[t];
    T partial[kSums] = {};
    int d = 0;
    for (; d + kSums <= dim; d += kSums) {
      for (int i = 0; i < kSums; ++i) {
        partial[i] += a[d + i] * b[d + i];
      }
    }
    T sum = 0;
    for (; d < dim; ++d) {
      sum += a[d] * b[d];
    }
    for (const T value : partial) {
      sum += value;
    }
    delta[t] = sum;
  }
}

}  // namespace

template <typename T>
void attention_forward(T* out, T* lse, const T* qkv, AttentionSizes s) {
  const int64_t num_blocks = (s.sequence + kBlock - 1) / kBlock;
  // Late blocks see more keys: dynamic, from the last block on. Every block is computed alone, so order is free.
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t block = num_blocks - 1; block >= 0; --block) {
    for (int64_t bh = 0; bh < s.batch * s.heads; ++bh) {
      const int64_t b = bh / s.heads;
      const int64_t h = bh % s.heads;
      const int64_t first = block * kBlock;
      const int queries = static_cast<int>(std::min<int64_t>(kBlock, s.sequence - first));
      forward_block(rows_of(out, s, b, h), lse + bh * s.sequence, head_of(qkv, s, b, h), first, queries,
                    static_cast<int>(s.head_dim), static_cast<T>(s.scale));
    }
  }
}

template <typename T>
void attention_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const T* lse, T* delta, AttentionSizes s) {
  const int dim = static_cast<int>(s.head_dim);
#pragma omp parallel for schedule(dynamic)
  for (int64_t bh = 0; bh < s.batch * s.heads; ++bh) {
    const int64_t b = bh / s.heads;
    const int64_t h = bh % s.heads;
    T* head_delta = delta + bh * s.sequence;
    row_products(head_delta, rows_of(dout, s, b, h), rows_of(out, s, b, h), s.sequence, dim);
    backward_head(head_of(dqkv, s, b, h), rows_of(dout, s, b, h), head_of(qkv, s, b, h), lse + bh * s.sequence,
                  head_delta, s.sequence, dim, static_cast<T>(s.scale));
  }
}

template void attention_forward(float*, float*, const float*, AttentionSizes);
template void attention_forward(double*, double*, const double*, AttentionSizes);
template void attention_backward(float*, const float*, const float*, const float*, const float*, float*,
                                 AttentionSizes);
template void attention_backward(double*, const double*, const double*, const double*, const double*, double*,
                                 AttentionSizes);

}  // namespace ashlar::kernels::cpu
