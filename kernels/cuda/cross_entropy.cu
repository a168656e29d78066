// A block per row, rows in descending order: the matrix product before wrote the last rows last, and they may still be
// in the second-level cache. Logits are read once for the stats and once more, written in place, for the gradient.
#include "kernels/cuda/cross_entropy.h"

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr float kLog2E = 1.4426950408889634f;

DEVICE_INLINE int64_t descending_row() {
  return gridDim.x - 1 - static_cast<int64_t>(blockIdx.x);
}

// The largest of some numbers, and the sum of exp(number - largest).
struct Running {
  float largest = -INFINITY;
  float exp_sum = 0;
};

// -infinity stands for no numbers: exp(-infinity - -infinity) would be NaN.
DEVICE_INLINE Running merge(const Running& a, const Running& b) {
  if (b.largest == -INFINITY) {
    return a;
  }
  Running r;
  r.largest = fmaxf(a.largest, b.largest);
  r.exp_sum = a.exp_sum * exp2_approx((a.largest - r.largest) * kLog2E) +
              b.exp_sum * exp2_approx((b.largest - r.largest) * kLog2E);
  return r;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_stats_kernel(float* stats, const T* logits, const int32_t* targets, VocabShard shard, bool wide) {
  constexpr int kPack = kPackOf<T>;
  SMEM_STATIC(float, warp_largest, kThreads / 32);
  SMEM_STATIC(float, warp_sums, kThreads / 32);
  const int64_t row = descending_row();
  const T* x = logits + row * shard.columns;
  const int thread = threadIdx.x;
  Running running;
  for (int64_t v = thread * kPack; v < shard.num_valid; v += kThreads * kPack) {
    const int64_t left = shard.num_valid - v;
    const auto p = load_pack<kPack>(x + v, left, wide);
    float largest = running.largest;
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      largest = k < left ? fmaxf(largest, p.v[k]) : largest;
    }
    if (largest == -INFINITY) {
      bool is_nan = false;  // fmaxf passes over NaN, which must reach the sum all the same
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        is_nan = is_nan || (k < left && p.v[k] != p.v[k]);
      }
      if (!is_nan) {
        continue;
      }
      largest = 0.0f;
    }
    float sum = running.exp_sum * exp2_approx((running.largest - largest) * kLog2E);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      sum += k < left ? exp2_approx((p.v[k] - largest) * kLog2E) : 0.0f;
    }
    running = {largest, sum};
  }
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    Running other;
    other.largest = __shfl_xor_sync(kAllLanes, running.largest, width);
    other.exp_sum = __shfl_xor_sync(kAllLanes, running.exp_sum, width);
    running = merge(running, other);
  }
  if (thread % 32 == 0) {
    warp_largest[thread / 32] = running.largest;
    warp_sums[thread / 32] = running.exp_sum;
  }
  __syncthreads();
  if (thread != 0) {
    return;
  }
  for (int w = 1; w < kThreads / 32; ++w) {
    Running other;
    other.largest = warp_largest[w];
    other.exp_sum = warp_sums[w];
    running = merge(running, other);
  }
  const int64_t target = targets[row] - shard.vocab_begin;
  stats[row * 3] = running.largest;
  stats[row * 3 + 1] = running.exp_sum;
  stats[row * 3 + 2] = target >= 0 && target < shard.num_valid ? to_float(x[target]) : 0.0f;
}

// Every thread combines the ranks' numbers itself, in rank order: a few loads that all threads share.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_finish_kernel(float* losses, T* logits, const float* all_stats, const int32_t* targets,
                                const float* mask, int64_t num_ranks, VocabShard shard, float scale, bool gradient,
                                bool wide) {
  constexpr int kPack = kPackOf<T>;
  const int64_t row = descending_row();
  const int64_t rows = gridDim.x;
  T* x = logits + row * shard.columns;
  const int thread = threadIdx.x;
  const bool is_counted = mask[row] != 0.0f;  // a masked row may hold anything, NaN included
  float largest = -INFINITY;
  float exp_sum = 0;
  float target_logit = 0;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    largest = fmaxf(largest, all_stats[(rank * rows + row) * 3]);
  }
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const float* stats = all_stats + (rank * rows + row) * 3;
    exp_sum += stats[1] * expf(stats[0] - largest);
    target_logit += stats[2];
  }
  if (thread == 0) {
    losses[row] = is_counted ? logf(exp_sum) + (largest - target_logit) : 0.0f;
  }
  if (!gradient) {
    return;
  }
  const float factor = scale / exp_sum;
  const int64_t target = targets[row] - shard.vocab_begin;
  for (int64_t v = thread * kPack; v < shard.columns; v += kThreads * kPack) {
    const int64_t left = shard.columns - v;
    auto p = load_pack<kPack>(x + v, left, wide);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float onehot = v + k == target ? scale : 0.0f;
      const float slope = factor * exp2_approx((p.v[k] - largest) * kLog2E) - onehot;
      p.v[k] = is_counted && v + k < shard.num_valid ? slope : 0.0f;
    }
    store_pack(x + v, p, left, wide);
  }
}

}  // namespace

void cross_entropy_stats(Element element, float* stats, const void* logits, const int32_t* targets, int64_t rows,
                         VocabShard shard, StreamHandle stream) {
  if (rows == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    LAUNCH(cross_entropy_stats_kernel<T>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, stats, logits,
           targets, shard, can_be_wide<T, kPackOf<T>>({logits}, shard.columns));
  });
}

void cross_entropy_finish(Element element, float* losses, void* logits, const float* all_stats, const int32_t* targets,
                          const float* mask, int64_t num_ranks, int64_t rows, VocabShard shard, double scale,
                          bool gradient, StreamHandle stream) {
  if (rows == 0) {
    return;
  }
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    LAUNCH(cross_entropy_finish_kernel<T>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, losses, logits,
           all_stats, targets, mask, num_ranks, shard, scale, gradient,
           can_be_wide<T, kPackOf<T>>({logits}, shard.columns));
  });
}

}  // namespace ashlar::kernels::cuda
