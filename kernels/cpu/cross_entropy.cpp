#include "kernels/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/vector_math.h"

namespace ashlar::kernels::cpu {
namespace {

// The three numbers of a row over all ranks. Every rank combines them in rank order, so all hold the same bits.
template <typename T>
struct RowTotal {
  T largest;
  T exp_sum;
  T target_logit;
};

template <typename T>
RowTotal<T> combine_ranks(const T* all_stats, int64_t num_ranks, int64_t rows, int64_t row) {
  RowTotal<T> total{-std::numeric_limits<T>::infinity(), 0, 0};
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    total.largest = std::max(total.largest, all_stats[(rank * rows + row) * 3]);
  }
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const T* stats = all_stats + (rank * rows + row) * 3;
    total.exp_sum += stats[1] * std::exp(stats[0] - total.largest);
    total.target_logit += stats[2];
  }
  return total;
}

}  // namespace

template <typename T>
void cross_entropy_stats(T* stats, const T* logits, const int32_t* targets, int64_t rows, VocabShard shard) {
#pragma omp parallel for schedule(static) if (rows * shard.columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    const T* x = logits + row * shard.columns;
    const T largest = max_lanes(shard.num_valid, -std::numeric_limits<T>::infinity(), [=](int64_t v) { return x[v]; });
    const T exp_sum = sum_lanes<T>(shard.num_valid, [=](int64_t v) { return exp_fast(x[v] - largest); });
    const int64_t target = targets[row] - shard.vocab_begin;
    stats[row * 3] = largest;
    stats[row * 3 + 1] = exp_sum;
    stats[row * 3 + 2] = target >= 0 && target < shard.num_valid ? x[target] : T{0};
  }
}

template <typename T>
void cross_entropy_finish(T* losses, T* logits, const T* all_stats, const int32_t* targets, const float* mask,
                          int64_t num_ranks, int64_t rows, VocabShard shard, double scale, bool gradient) {
#pragma omp parallel for schedule(static) if (rows * shard.columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    T* x = logits + row * shard.columns;
    if (mask[row] == 0.0f) {  // set, not multiplied: a masked row may hold anything, NaN included
      losses[row] = 0;
      if (gradient) {
        std::fill_n(x, shard.columns, T{0});
      }
      continue;
    }
    const RowTotal<T> total = combine_ranks(all_stats, num_ranks, rows, row);
    losses[row] = std::log(total.exp_sum) + (total.largest - total.target_logit);
    if (!gradient) {
      continue;
    }
    const T largest = total.largest;
    const T factor = static_cast<T>(scale) / total.exp_sum;
    for (int64_t v = 0; v < shard.num_valid; ++v) {
      x[v] = factor * exp_fast(x[v] - largest);
    }
    std::fill(x + shard.num_valid, x + shard.columns, T{0});
    const int64_t target = targets[row] - shard.vocab_begin;
    if (target >= 0 && target < shard.num_valid) {
      x[target] -= static_cast<T>(scale);
    }
  }
}

template void cross_entropy_stats(float*, const float*, const int32_t*, int64_t, VocabShard);
template void cross_entropy_stats(double*, const double*, const int32_t*, int64_t, VocabShard);
template void cross_entropy_finish(float*, float*, const float*, const int32_t*, const float*, int64_t, int64_t,
                                   VocabShard, double, bool);
template void cross_entropy_finish(double*, double*, const double*, const int32_t*, const float*, int64_t, int64_t,
                                   VocabShard, double, bool);

}  // namespace ashlar::kernels::cpu
