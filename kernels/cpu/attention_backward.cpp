#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/attention_dropout.h"
#include "kernels/cpu/vector_math.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T>
struct alignas(kBlockAlignment) BackwardBlocks {
  T probability[kAttentionBlock * kAttentionBlock];  // [keys, queries]
  T dscore[kAttentionBlock * kAttentionBlock];       // [keys, queries]
  T query[kAttentionBlock * kMaxHeadDim];            // [queries, D padded], scaled
  T query_t[kMaxHeadDim * kAttentionBlock];          // [D padded, queries], scaled
  T dout[kAttentionBlock * kMaxHeadDim];             // [queries, D padded]
  T dout_t[kMaxHeadDim * kAttentionBlock];           // [D padded, queries]
  T dquery[kAttentionBlock * kMaxHeadDim];           // [queries, D padded]
  T key[kAttentionBlock * kMaxHeadDim];              // [keys, D padded]
  T dkey[kAttentionBlock * kMaxHeadDim];             // [keys, D padded]: of values, then of keys
  T lse[kAttentionBlock];
  T delta[kAttentionBlock];
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
    T* probability = x.probability + k * kAttentionBlock + column;
    T* dscore = x.dscore + k * kAttentionBlock + column;
    for (int c = 0; c < kWidth; ++c) {
      const T p = exp_fast(probability[c] - x.lse[column + c]);
      probability[c] = diagonal && column + c < k ? T(0) : p;
      dscore[c] = probability[c] * (dscore[c] - x.delta[column + c]);
    }
  }
}

// The same with dropout factors f: the probabilities that met the values were f * probability, and delta, which is made
// of the output, knows of it. Out of line, so that the code without dropout stays what it was.
template <typename T>
[[gnu::noinline]] void softmax_dropout_backward(BackwardBlocks<T>& x, int column, int keys, bool diagonal,
                                                const HeadDropout& dropout, int64_t first_key, int64_t first_query) {
  for_each_factor_row<T, kPanel<T>>(dropout, first_key, keys, first_query + column, [&](int k, const T* factors) {
    T* probability = x.probability + k * kAttentionBlock + column;
    T* dscore = x.dscore + k * kAttentionBlock + column;
    for (int c = 0; c < kPanel<T>; ++c) {
      const T exponential = exp_fast(probability[c] - x.lse[column + c]);
      const T p = diagonal && column + c < k ? T(0) : exponential;
      probability[c] = p * factors[c];
      dscore[c] = p * (dscore[c] * factors[c] - x.delta[column + c]);
    }
  });
}

// One head. Queries outside, keys inside: the gradients of a key are added in ascending order of query blocks.
// dropout may be null.
template <typename T>
void backward_head(Head<T> dx, Rows<const T> dout, Head<const T> x, const T* lse, const T* delta, int64_t sequence,
                   int dim, T scale, const HeadDropout* dropout) {
  BackwardBlocks<T> blocks;
  const int padded = padded_columns<T>(dim);
  for (int64_t first = 0; first < sequence; first += kAttentionBlock) {
    const int queries = static_cast<int>(std::min<int64_t>(kAttentionBlock, sequence - first));
    pack(blocks.query, padded, x.q, first, queries, dim, scale);
    transpose(blocks.query_t, blocks.query, queries, padded);
    pack(blocks.dout, padded, dout, first, queries, dim, T(1));
    transpose(blocks.dout_t, blocks.dout, queries, padded);
    std::fill(blocks.dquery, blocks.dquery + queries * padded, T(0));
    for (int q = 0; q < kAttentionBlock; ++q) {
      blocks.lse[q] = q < queries ? lse[first + q] : T(0);
      blocks.delta[q] = q < queries ? delta[first + q] : T(0);
    }
    for (int64_t key = 0; key <= first; key += kAttentionBlock) {
      const bool diagonal = key == first;
      const int keys = diagonal ? queries : kAttentionBlock;
      pack(blocks.key, padded, x.k, key, keys, dim, T(1));
      for (int column = 0; column < queries; column += kPanel<T>) {
        const int visible = visible_keys<T>(diagonal, column, keys);
        block_product(blocks.probability + column, kAttentionBlock, visible, kPanel<T>, blocks.key, padded, 1,
                      blocks.query_t + column, kAttentionBlock, dim, false);
        block_product(blocks.dscore + column, kAttentionBlock, visible, kPanel<T>, x.v[key], x.v.stride, 1,
                      blocks.dout_t + column, kAttentionBlock, dim, false);
        if (dropout == nullptr) {
          softmax_backward(blocks, column, visible, diagonal);
        } else {
          softmax_dropout_backward(blocks, column, visible, diagonal, *dropout, key, first);
        }
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
void attention_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const T* lse, T* delta, AttentionSizes s) {
  const int dim = static_cast<int>(s.head_dim);
#pragma omp parallel for schedule(dynamic)
  for (int64_t bh = 0; bh < s.batch * s.heads; ++bh) {
    const int64_t b = bh / s.heads;
    const int64_t h = bh % s.heads;
    T* head_delta = delta + bh * s.sequence;
    row_products(head_delta, rows_of(dout, s, b, h), rows_of(out, s, b, h), s.sequence, dim);
    const HeadDropout dropout(s.dropout, b, h);
    backward_head(head_of(dqkv, s, b, h), rows_of(dout, s, b, h), head_of(qkv, s, b, h), lse + bh * s.sequence,
                  head_delta, s.sequence, dim, static_cast<T>(s.scale), s.dropout.probability > 0 ? &dropout : nullptr);
  }
}

template void attention_backward(float*, const float*, const float*, const float*, const float*, float*,
                                 AttentionSizes);
template void attention_backward(double*, const double*, const double*, const double*, const double*, double*,
                                 AttentionSizes);

}  // namespace ashlar::kernels::cpu
