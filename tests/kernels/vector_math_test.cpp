// exp_fast against the standard library in double, over all magnitudes.
#include "kernels/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ashlar::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Calls check(x) for about 400,000 floats, evenly spread over bit patterns: every exponent, both signs.
template <typename Check>
void for_floats(Check check) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 10007) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isfinite(x)) {
      check(x);
    }
  }
}

TEST(ExpFast, IsAccurateWhereTheResultIsNormal) {
  double worst = 0;
  for_floats([&](float x) {
    if (x > -86.9f && x < 88.72f) {
      const double exact = std::exp(static_cast<double>(x));
      worst = std::max(worst, std::abs(static_cast<double>(exp_fast(x)) - exact) / exact);
    }
  });
  for (float x = -86.9f; x < 88.72f; x += 0.00113f) {  // most bit patterns are tiny numbers or huge ones
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exp_fast(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 1.4e-7);
}

TEST(ExpFast, SaturatesAndKeepsNan) {
  for_floats([&](float x) {
    if (x < -87.0f) {
      EXPECT_EQ(exp_fast(x), 0.0f) << x;
    } else if (x > 88.73f) {
      EXPECT_EQ(exp_fast(x), kInfinity) << x;
    }
  });
  EXPECT_EQ(exp_fast(-kInfinity), 0.0f);
  EXPECT_EQ(exp_fast(kInfinity), kInfinity);
  EXPECT_EQ(exp_fast(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(exp_fast(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace ashlar::kernels::cpu
