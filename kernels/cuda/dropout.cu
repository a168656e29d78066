#include "kernels/cuda/dropout.h"

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/philox.cuh"

namespace ashlar::kernels::cuda {
namespace {

struct Mask {
  uint32_t key0, key1;
  uint32_t threshold;
  float keep_scale;
  uint32_t first_sample;
  SampleRows place;
};

// A block covers 8 rows of 32 packs; a Philox block serves four elements.
constexpr int kRowsPerBlock = 8;
template <typename T>
__global__ void __launch_bounds__(32 * kRowsPerBlock)
    dropout_forward_kernel(T* out, const T* x, const T* bias, const T* residual, int64_t rows, int64_t columns,
                           Mask mask, bool wide) {
  constexpr int kPack = kPackOf<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.y;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * 32 + threadIdx.x) * kPack;
  const int64_t left = columns - column;
  if (row >= rows || left <= 0) {
    return;
  }
  const int64_t at = row * columns + column;
  const int64_t sample = (mask.place.first + row) / mask.place.length;
  const int64_t position = mask.place.first + row - sample * mask.place.length;
  auto p = load_pack<kPack>(x + at, left, wide);
  const auto q = residual == nullptr ? Pack<kPack>{} : load_pack<kPack>(residual + at, left, wide);
  const auto r = bias == nullptr ? Pack<kPack>{} : load_pack<kPack>(bias + column, left, wide);
#pragma unroll
  for (int first = 0; first < kPack; first += 4) {
    const PhiloxWords words =
        philox_4x32_10({{static_cast<uint32_t>((column + first) / 4), static_cast<uint32_t>(position), 0u,
                         mask.first_sample + static_cast<uint32_t>(sample)}},
                       mask.key0, mask.key1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = first + i;
      // A dropped infinity is 0.
      p.v[k] = q.v[k] + (words.w[i] >= mask.threshold ? (p.v[k] + r.v[k]) * mask.keep_scale : 0.0f);
    }
  }
  store_pack(out + at, p, left, wide);
}

}  // namespace

void dropout_forward(Element element, void* out, const void* x, const void* bias, const void* residual, int64_t rows,
                     int64_t columns, const Dropout& dropout, const SampleRows& place, StreamHandle stream) {
  if (rows * columns == 0) {
    return;
  }
  const Mask mask{dropout.key[0],
                  dropout.key[1],
                  dropout.threshold(),
                  static_cast<float>(dropout.keep_scale()),
                  static_cast<uint32_t>(dropout.first_sample),
                  place};
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kPack = kPackOf<T>;
    const dim3 grid(static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock),
                    static_cast<unsigned>((columns + 32 * kPack - 1) / (32 * kPack)));
    LAUNCH(dropout_forward_kernel<T>, grid, dim3(32, kRowsPerBlock), 0, stream, out, x, bias, residual, rows, columns,
           mask, can_be_wide<T, kPack>({out, x, bias, residual}, columns));
  });
}

}  // namespace ashlar::kernels::cuda
