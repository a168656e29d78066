#include "kernels/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/vector_math.h"

namespace ashlar::kernels::cpu {
namespace {

// The three numbers of a row over all ranks. Every rank combines them in rank order, so all hold the same bits.
template <typename S>
struct RowTotal {
  S largest;
  S exp_sum;
  S target_logit;
};

template <typename S>
RowTotal<S> combine_ranks(const S* all_stats, int64_t num_ranks, int64_t rows, int64_t row) {
  RowTotal<S> total{-std::numeric_limits<S>::infinity(), 0, 0};
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    total.largest = std::max(total.largest, all_stats[(rank * rows + row) * 3]);
  }
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const S* stats = all_stats + (rank * rows + row) * 3;
    total.exp_sum += stats[1] * std::exp(stats[0] - total.largest);
    total.target_logit += stats[2];
  }
  return total;
}

}  // namespace

template <typename T>
void cross_entropy_stats(Compute<T>* stats, const T* logits, const int32_t* targets, int64_t rows, VocabShard shard) {
  using S = Compute<T>;
#pragma omp parallel for schedule(static) if (rows * shard.columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = logits + row * shard.columns;
    const S largest =
        max_lanes(shard.num_valid, -std::numeric_limits<S>::infinity(), [=](int64_t v) { return widen(x[v]); });
    const S exp_sum = sum_lanes<S>(shard.num_valid, [=](int64_t v) { return exp_fast(widen(x[v]) - largest); });
    const int64_t target = targets[row] - shard.vocab_begin;
    stats[row * 3] = largest;
    stats[row * 3 + 1] = exp_sum;
    stats[row * 3 + 2] = target >= 0 && target < shard.num_valid ? widen(x[target]) : S{0};
  }
}

template <typename T>
void cross_entropy_finish(Compute<T>* losses, T* logits, const Compute<T>* all_stats, const int32_t* targets,
                          const float* mask, int64_t num_ranks, int64_t rows, VocabShard shard, double scale,
                          bool gradient) {
  using S = Compute<T>;
#pragma omp parallel for schedule(static) if (rows * shard.columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    T* x = logits + row * shard.columns;
    if (mask[row] == 0.0f) {  // set, not multiplied: a masked row may hold anything, NaN included
      losses[row] = 0;
      if (gradient) {
        std::fill_n(x, shard.columns, T{});
      }
      continue;
    }
    const RowTotal<S> total = combine_ranks(all_stats, num_ranks, rows, row);
    losses[row] = std::log(total.exp_sum) + (total.largest - total.target_logit);
    if (!gradient) {
      continue;
    }
    const S largest = total.largest;
    const S factor = static_cast<S>(scale) / total.exp_sum;
    const int64_t target = targets[row] - shard.vocab_begin;
    const bool is_here = target >= 0 && target < shard.num_valid;
    const S target_logit = is_here ? widen(x[target]) : S{0};
    for (int64_t v = 0; v < shard.num_valid; ++v) {
      x[v] = narrow<T>(factor * exp_fast(widen(x[v]) - largest));
    }
    std::fill(x + shard.num_valid, x + shard.columns, T{});
    if (is_here) {
      if constexpr (std::is_same_v<T, S>) {
        x[target] -= static_cast<S>(scale);
      } else {  // rounded once
        x[target] = narrow<T>(factor * exp_fast(target_logit - largest) - static_cast<S>(scale));
      }
    }
  }
}

#define INSTANTIATE(T)                                                                                          \
  template void cross_entropy_stats(Compute<T>*, const T*, const int32_t*, int64_t, VocabShard);                \
  template void cross_entropy_finish(Compute<T>*, T*, const Compute<T>*, const int32_t*, const float*, int64_t, \
                                     int64_t, VocabShard, double, bool)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
