#include <cmath>
#include <limits>

#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/attention_dropout.h"
#include "kernels/cpu/vector_math.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
struct alignas(kBlockAlignment) ForwardBlocks {
  T scores[kAttentionBlock * kAttentionBlock];  // [keys, queries]
  T query_t[kMaxHeadDim * kAttentionBlock];     // [D padded, queries], scaled
  T value[kAttentionBlock * kMaxHeadDim];       // [keys, D padded]; the queries before they are transposed
  T out[kAttentionBlock * kMaxHeadDim];         // [queries, D padded], not yet divided by the softmax denominator
  T largest[kAttentionBlock];                   // of the scores seen so far
  T denominator[kAttentionBlock];
  T rescale[kAttentionBlock];
};

// Turns the scores of one column panel into exp(score - largest), and updates the running maximum and denominator.
template <typename T>
void online_softmax(ForwardBlocks<T>& x, int column, int keys, bool diagonal) {
  constexpr int kWidth = kPanel<T>;
  T largest[kWidth];
  T sum[kWidth] = {};
  for (int c = 0; c < kWidth; ++c) {
    largest[c] = x.largest[column + c];
  }
  for (int k = 0; k < keys; ++k) {
    T* row = x.scores + k * kAttentionBlock + column;
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
    T* row = x.scores + k * kAttentionBlock + column;
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

// The denominators have been summed: they are those of the softmax, which dropout follows. Out of line, so that the
// code without dropout stays what it was.
template <typename T>
[[gnu::noinline]] void drop_probabilities(ForwardBlocks<T>& x, int column, const HeadDropout& dropout,
                                          int64_t first_key, int keys, int64_t first_query) {
  for_each_factor_row<T, kPanel<T>>(dropout, first_key, keys, first_query + column, [&](int k, const T* factors) {
    T* row = x.scores + k * kAttentionBlock + column;
    for (int c = 0; c < kPanel<T>; ++c) {
      row[c] *= factors[c];
    }
  });
}

// Queries [first, first + queries) of one head. dropout may be null.
template <typename T, typename S>
void forward_block(Rows<T> out, S* lse, Head<const T> x, int64_t first, int queries, int dim, S scale,
                   const HeadDropout* dropout) {
  ForwardBlocks<S> blocks;
  WideRows<T> wide_keys;
  const int padded = padded_columns<S>(dim);
  pack(blocks.value, padded, x.q, first, queries, dim, scale);
  transpose(blocks.query_t, blocks.value, queries, padded);
  std::fill(blocks.out, blocks.out + queries * padded, S(0));
  std::fill(blocks.largest, blocks.largest + kAttentionBlock, -std::numeric_limits<S>::infinity());
  std::fill(blocks.denominator, blocks.denominator + kAttentionBlock, S(0));

  for (int64_t key = 0; key <= first; key += kAttentionBlock) {
    const bool diagonal = key == first;
    const int keys = diagonal ? queries : kAttentionBlock;
    pack(blocks.value, padded, x.v, key, keys, dim, S(1));
    const Rows<const S> k = readable(wide_keys, padded, x.k, key, keys, dim);
    for (int column = 0; column < queries; column += kPanel<S>) {
      const int visible = visible_keys<S>(diagonal, column, keys);
      block_product(blocks.scores + column, kAttentionBlock, visible, kPanel<S>, k.data, k.stride, 1,
                    blocks.query_t + column, kAttentionBlock, dim, false);
      online_softmax(blocks, column, visible, diagonal);
      if (dropout != nullptr) {
        drop_probabilities(blocks, column, *dropout, key, visible, first);
      }
    }
    for (int q = 0; q < queries; ++q) {
      S* row = blocks.out + q * padded;
      if (blocks.rescale[q] != S(1)) {  // after a few blocks the largest score rarely changes
        for (int d = 0; d < padded; ++d) {
          row[d] *= blocks.rescale[q];
        }
      }
    }
    add_over_keys(blocks.out, padded, blocks.scores, blocks.value, padded, queries, keys, diagonal);
  }

  for (int q = 0; q < queries; ++q) {
    const S inverse = S(1) / blocks.denominator[q];
    T* row = out[first + q];
    for (int d = 0; d < dim; ++d) {
      row[d] = narrow<T>(blocks.out[q * padded + d] * inverse);
    }
    lse[first + q] = blocks.largest[q] + std::log(blocks.denominator[q]);
  }
}

}  // namespace

template <typename T>
void attention_forward(T* out, Compute<T>* lse, const T* qkv, AttentionSizes s) {
  const int64_t num_blocks = (s.sequence + kAttentionBlock - 1) / kAttentionBlock;
  // Late blocks see more keys: dynamic, from the last block on. Every block is computed alone, so order is free.
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t block = num_blocks - 1; block >= 0; --block) {
    for (int64_t bh = 0; bh < s.batch * s.heads; ++bh) {
      const int64_t b = bh / s.heads;
      const int64_t h = bh % s.heads;
      const int64_t first = block * kAttentionBlock;
      const int queries = static_cast<int>(std::min<int64_t>(kAttentionBlock, s.sequence - first));
      const HeadDropout dropout(s.dropout, b, h);
      forward_block(rows_of(out, s, b, h), lse + bh * s.sequence, head_of(qkv, s, b, h), first, queries,
                    static_cast<int>(s.head_dim), static_cast<Compute<T>>(s.scale),
                    s.dropout.probability > 0 ? &dropout : nullptr);
    }
  }
}

template void attention_forward(float*, float*, const float*, AttentionSizes);
template void attention_forward(double*, double*, const double*, AttentionSizes);
template void attention_forward(BFloat16*, float*, const BFloat16*, AttentionSizes);
template void attention_forward(Float16*, float*, const Float16*, AttentionSizes);

}  // namespace ashlar::kernels::cpu
