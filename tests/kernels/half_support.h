// 16-bit operands for the tests of kernels, and how near a rounded result must be to the true one. The truth is the
// same kernel in double on the same numbers; its own tests compare that with formulas and finite differences.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/element.h"
#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {

template <typename T>
std::vector<T> rounded(const std::vector<double>& values) {
  std::vector<T> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(),
                 [](double x) { return cpu::narrow<T>(static_cast<cpu::Compute<T>>(x)); });
  return result;
}

template <typename T>
std::vector<double> widened(const std::vector<T>& values) {
  std::vector<double> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [](T x) { return static_cast<double>(cpu::widen(x)); });
  return result;
}

template <typename T>
std::vector<T> random_halves(int64_t n, uint64_t stream, double scale = 1) {
  return rounded<T>(random_values<double>(n, stream, scale));
}

// Half the distance between neighbours of T around x.
template <typename T>
double half_step(double x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return std::ldexp(1.0, std::max(std::ilogb(x), -126) - 8);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return std::ldexp(1.0, std::max(std::ilogb(x), -14) - 11);
  } else {
    return 0;
  }
}

// Each element is the expected number rounded once, but for what fp32 arithmetic is off: `slack` of the larger of the
// number and `size`, the size of what was summed.
template <typename T>
void expect_rounded(const std::vector<T>& actual, const std::vector<double>& expected, double slack,
                    const std::string& what, double size = 1) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto value = static_cast<double>(cpu::widen(actual[i]));
    const double bound =
        (expected[i] == 0 ? 0 : half_step<T>(expected[i])) + slack * std::max(size, std::abs(expected[i]));
    ASSERT_LE(std::abs(value - expected[i]), bound)
        << what << " element " << i << ": " << value << ", expected " << expected[i];
  }
}

template <typename T>
class Halves : public testing::Test {};
using HalfTypes = testing::Types<BFloat16, Float16>;

}  // namespace ashlar::kernels
