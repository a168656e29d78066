#include "kernels/cuda/random.h"

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/philox.cuh"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kPack = 4;  // a Philox block

DEVICE_INLINE float uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// Two normal numbers of mean 0 and deviation 1 from two words, as PhiloxStream::normal of runtime/base/rng.cpp: radius
// sqrt(-2 ln((a + 1) / 2^32)) and angle 2 pi b / 2^32.
DEVICE_INLINE float2 normal_pair(uint32_t a, uint32_t b) {
  // Near 1, fp32 would lose the logarithm's digits: there it is taken of 1 - (2^32 - 1 - a) / 2^32.
  const float negative_log =
      a < 0x80000000u ? -logf((static_cast<float>(a) + 1.0f) * 0x1p-32f) : -log1pf(static_cast<float>(~a) * -0x1p-32f);
  const float radius = sqrtf(2.0f * negative_log);
  float sine;
  float cosine;
  sin_cos_pi(static_cast<float>(static_cast<int32_t>(b)) * 0x1p-31f, &sine, &cosine);  // in [-1, 1): more digits
  return make_float2(radius * cosine, radius * sine);
}

// A thread draws one block of the stream, so the first and the last thread may lie across the ends of out.
template <bool kNormal>
__global__ void __launch_bounds__(kFlatThreads)
    fill_random_kernel(float* out, PhiloxKey key, uint64_t first, float mean, float std, int64_t n, bool wide) {
  const int64_t thread = flat_index<1>();
  const uint64_t block = first / kPack + static_cast<uint64_t>(thread);
  const int64_t begin = thread * kPack - static_cast<int64_t>(first % kPack);  // in out, of the block's first word
  if (begin >= n) {
    return;
  }
  const PhiloxWords words =
      philox_4x32_10({{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), key.high[0], key.high[1]}},
                     key.key[0], key.key[1]);
  Pack<kPack> p;
  if constexpr (kNormal) {
#pragma unroll
    for (int k = 0; k < kPack; k += 2) {
      const float2 pair = normal_pair(words.w[k], words.w[k + 1]);
      p.v[k] = mean + std * pair.x;
      p.v[k + 1] = mean + std * pair.y;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      p.v[k] = uniform(words.w[k]);
    }
  }
  if (begin >= 0) {
    store_pack(out + begin, p, n - begin, wide);
    return;
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    if (begin + k >= 0 && begin + k < n) {
      out[begin + k] = p.v[k];
    }
  }
}

template <bool kNormal>
void fill(float* out, PhiloxKey key, uint64_t first, double mean, double std, int64_t n, StreamHandle stream) {
  if (n == 0) {
    return;
  }
  const int64_t num_blocks = (static_cast<int64_t>(first % kPack) + n + kPack - 1) / kPack;
  LAUNCH(fill_random_kernel<kNormal>, flat_grid<1>(num_blocks), dim3(kFlatThreads), 0, stream, out, key, first, mean,
         std, n, first % kPack == 0 && can_be_wide<float, kPack>({out}));
}

}  // namespace

void fill_normal(float* out, PhiloxKey key, uint64_t first, double mean, double std, int64_t n, StreamHandle stream) {
  fill<true>(out, key, first, mean, std, n, stream);
}

void fill_uniform(float* out, PhiloxKey key, uint64_t first, int64_t n, StreamHandle stream) {
  fill<false>(out, key, first, 0, 1, n, stream);
}

}  // namespace ashlar::kernels::cuda
