#include <vector>

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
template <typename T, typename S>
void write_rows(Rows<T> to, int64_t first, const S* from, int padded, int rows, int dim, bool accumulate) {
  for (int r = 0; r < rows; ++r) {
    T* row = to[first + r];
    for (int d = 0; d < dim; ++d) {
      row[d] = narrow<T>(from[r * padded + d] + (accumulate ? widen(row[d]) : S(0)));
    }
  }
}

// The gradients of keys and values are sums over blocks of queries. In 16 bits they would be rounded at each, so the
// sums of a head [T,D] are kept apart, and rounded when they are complete.
template <typename T>
class KeySums {
 public:
  using S = Compute<T>;

  KeySums(Head<T> gradient, int64_t sequence, int dim) : gradient_(gradient), sequence_(sequence), dim_(dim) {
    if constexpr (!kInPlace) {
      thread_local std::vector<S> room;
      room.resize(std::max(room.size(), static_cast<size_t>(2 * sequence * dim)));
      k_ = {room.data(), dim};
      v_ = {room.data() + sequence * dim, dim};
    } else {
      k_ = gradient.k;
      v_ = gradient.v;
    }
  }
  Rows<S> k() const { return k_; }
  Rows<S> v() const { return v_; }
  void finish() const {
    if constexpr (!kInPlace) {
      write_rows(gradient_.k, 0, k_.data, dim_, static_cast<int>(sequence_), dim_, false);
      write_rows(gradient_.v, 0, v_.data, dim_, static_cast<int>(sequence_), dim_, false);
    }
  }

 private:
  static constexpr bool kInPlace = std::is_same_v<T, S>;
  Head<T> gradient_;
  int64_t sequence_;
  int dim_;
  Rows<S> k_, v_;
};

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
template <typename T, typename S>
void backward_head(Head<T> dx, Rows<const T> dout, Head<const T> x, const S* lse, const S* delta, int64_t sequence,
                   int dim, S scale, const HeadDropout* dropout) {
  BackwardBlocks<S> blocks;
  WideRows<T> wide_values;
  const KeySums<T> sums(dx, sequence, dim);
  const int padded = padded_columns<S>(dim);
  for (int64_t first = 0; first < sequence; first += kAttentionBlock) {
    const int queries = static_cast<int>(std::min<int64_t>(kAttentionBlock, sequence - first));
    pack(blocks.query, padded, x.q, first, queries, dim, scale);
    transpose(blocks.query_t, blocks.query, queries, padded);
    pack(blocks.dout, padded, dout, first, queries, dim, S(1));
    transpose(blocks.dout_t, blocks.dout, queries, padded);
    std::fill(blocks.dquery, blocks.dquery + queries * padded, S(0));
    for (int q = 0; q < kAttentionBlock; ++q) {
      blocks.lse[q] = q < queries ? lse[first + q] : S(0);
      blocks.delta[q] = q < queries ? delta[first + q] : S(0);
    }
    for (int64_t key = 0; key <= first; key += kAttentionBlock) {
      const bool diagonal = key == first;
      const int keys = diagonal ? queries : kAttentionBlock;
      pack(blocks.key, padded, x.k, key, keys, dim, S(1));
      const Rows<const S> v = readable(wide_values, padded, x.v, key, keys, dim);
      for (int column = 0; column < queries; column += kPanel<S>) {
        const int visible = visible_keys<S>(diagonal, column, keys);
        block_product(blocks.probability + column, kAttentionBlock, visible, kPanel<S>, blocks.key, padded, 1,
                      blocks.query_t + column, kAttentionBlock, dim, false);
        block_product(blocks.dscore + column, kAttentionBlock, visible, kPanel<S>, v.data, v.stride, 1,
                      blocks.dout_t + column, kAttentionBlock, dim, false);
        if (dropout == nullptr) {
          softmax_backward(blocks, column, visible, diagonal);
        } else {
          softmax_dropout_backward(blocks, column, visible, diagonal, *dropout, key, first);
        }
      }
      product_over_queries(blocks.dkey, padded, blocks.probability, blocks.dout, queries, keys, diagonal);
      write_rows(sums.v(), key, blocks.dkey, padded, keys, dim, !diagonal);
      product_over_queries(blocks.dkey, padded, blocks.dscore, blocks.query, queries, keys, diagonal);
      write_rows(sums.k(), key, blocks.dkey, padded, keys, dim, !diagonal);
      add_over_keys(blocks.dquery, padded, blocks.dscore, blocks.key, padded, queries, keys, diagonal);
    }
    for (int i = 0; i < queries * padded; ++i) {
      blocks.dquery[i] *= scale;
    }
    write_rows(dx.q, first, blocks.dquery, padded, queries, dim, false);
  }
  sums.finish();
}

// delta = sum over d of dout * out: the part of a score's gradient that all keys of a query share.
template <typename T, typename S>
void row_products(S* delta, Rows<const T> dout, Rows<const T> out, int64_t sequence, int dim) {
  constexpr int kSums = 16;  // independent partial sums, so that the loop is not bound by the latency of one addition
  for (int64_t t = 0; t < sequence; ++t) {
    const T* a = dout[t];
    const T* b = out[t];
    S partial[kSums] = {};
    int d = 0;
    for (; d + kSums <= dim; d += kSums) {
      for (int i = 0; i < kSums; ++i) {
        partial[i] += widen(a[d + i]) * widen(b[d + i]);
      }
    }
    S sum = 0;
    for (; d < dim; ++d) {
      sum += widen(a[d]) * widen(b[d]);
    }
    for (const S value : partial) {
      sum += value;
    }
    delta[t] = sum;
  }
}

}  // namespace

template <typename T>
void attention_backward(T* dqkv, const T* dout, const T* qkv, const T* out, const Compute<T>* lse, Compute<T>* delta,
                        AttentionSizes s) {
  const int dim = static_cast<int>(s.head_dim);
#pragma omp parallel for schedule(dynamic)
  for (int64_t bh = 0; bh < s.batch * s.heads; ++bh) {
    const int64_t b = bh / s.heads;
    const int64_t h = bh % s.heads;
    Compute<T>* head_delta = delta + bh * s.sequence;
    row_products(head_delta, rows_of(dout, s, b, h), rows_of(out, s, b, h), s.sequence, dim);
    const HeadDropout dropout(s.dropout, b, h);
    backward_head(head_of(dqkv, s, b, h), rows_of(dout, s, b, h), head_of(qkv, s, b, h), lse + bh * s.sequence,
                  head_delta, s.sequence, dim, static_cast<Compute<T>>(s.scale),
                  s.dropout.probability > 0 ? &dropout : nullptr);
  }
}

#define INSTANTIATE(T) \
  template void attention_backward(T*, const T*, const T*, const T*, const Compute<T>*, Compute<T>*, AttentionSizes)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
