#include "kernels/cpu/dropout.h"

#include <algorithm>

#include "kernels/cpu/element.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/philox_lanes.h"

namespace ashlar::kernels::cpu {
namespace {

constexpr int kGroups = 16;  // Philox blocks at a time, of four channels each
constexpr int kPiece = 4 * kGroups;

// Factors of channels first + [0, kPiece) of one row.
template <typename S>
void make_factors(S (&factors)[kPiece], const Dropout& dropout, uint32_t threshold, S keep_scale, int64_t first,
                  uint32_t position, uint32_t sample) {
  uint32_t words[4][kGroups];
  for (int g = 0; g < kGroups; ++g) {
    words[0][g] = static_cast<uint32_t>(first / 4 + g);
    words[1][g] = position;
    words[2][g] = 0;
    words[3][g] = sample;
  }
  philox_lanes(words, dropout.key[0], dropout.key[1]);
  for (int g = 0; g < kGroups; ++g) {
    for (int i = 0; i < 4; ++i) {
      factors[4 * g + i] = words[i][g] >= threshold ? keep_scale : S(0);
    }
  }
}

template <typename T, bool kBias, bool kResidual>
void run_rows(T* out, const T* x, const T* bias, const T* residual, int64_t rows, int64_t columns,
              const Dropout& dropout, const SampleRows& place) {
  using S = Compute<T>;
  const uint32_t threshold = dropout.threshold();
  const S keep_scale = static_cast<S>(dropout.keep_scale());
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    const auto position = static_cast<uint32_t>((place.first + row) % place.length);
    const auto sample = static_cast<uint32_t>(dropout.first_sample + (place.first + row) / place.length);
    for (int64_t first = 0; first < columns; first += kPiece) {
      S factors[kPiece];
      make_factors(factors, dropout, threshold, keep_scale, first, position, sample);
      const int64_t at = row * columns + first;
      const int64_t count = std::min<int64_t>(kPiece, columns - first);
#pragma GCC ivdep
      for (int64_t c = 0; c < count; ++c) {
        S value = widen(x[at + c]);
        if constexpr (kBias) {
          value += widen(bias[first + c]);
        }
        value = factors[c] == S(0) ? S(0) : value * factors[c];  // a dropped infinity is 0
        if constexpr (kResidual) {
          value += widen(residual[at + c]);
        }
        out[at + c] = narrow<T>(value);
      }
    }
  }
}

}  // namespace

template <typename T>
void dropout_forward(T* out, const T* x, const T* bias, const T* residual, int64_t rows, int64_t columns,
                     const Dropout& dropout, const SampleRows& place) {
  if (residual == nullptr) {
    bias == nullptr ? run_rows<T, false, false>(out, x, bias, residual, rows, columns, dropout, place)
                    : run_rows<T, true, false>(out, x, bias, residual, rows, columns, dropout, place);
  } else {
    bias == nullptr ? run_rows<T, false, true>(out, x, bias, residual, rows, columns, dropout, place)
                    : run_rows<T, true, true>(out, x, bias, residual, rows, columns, dropout, place);
  }
}

#define INSTANTIATE(T) \
  template void dropout_forward(T*, const T*, const T*, const T*, int64_t, int64_t, const Dropout&, const SampleRows&)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
