#include "kernels/reduce.h"

#include <limits>

#include "tests/kernels/half_support.h"

namespace ashlar::kernels {
namespace {

template <typename T>
std::vector<double> squares_of(const std::vector<T>& x, int threads = 1) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<double> blocks(static_cast<size_t>((n + kNormBlock - 1) / kNormBlock), -1.0);
  with_threads(threads, [&](Stream& stream) { sum_of_squares(view(blocks), view(x), stream); });
  return blocks;
}

TEST(SumOfSquares, EqualsTheSumOfEachBlock) {
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{33}, kNormBlock, kNormBlock + 1, 3 * kNormBlock - 5}) {
    const auto x = random_values<float>(n, 1);
    const auto x_double = random_values<double>(n, 1);
    std::vector<double> expected(static_cast<size_t>((n + kNormBlock - 1) / kNormBlock));
    std::vector<double> expected_double = expected;
    for (size_t i = 0; i < x.size(); ++i) {
      expected[i / kNormBlock] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      expected_double[i / kNormBlock] += x_double[i] * x_double[i];
    }
    expect_close(squares_of(x), expected, 1e-14, "fp32");
    expect_close(squares_of(x_double), expected_double, 1e-14, "fp64");
  }
}

// Ownership of blocks must not show: a block gives the same bits alone, in the middle of others, at any alignment, and
// for any number of threads.
TEST(SumOfSquares, ABlockGivesTheSameBitsWhereverItSits) {
  for (const int64_t length : {kNormBlock, int64_t{1000}, int64_t{17}}) {
    const auto block = random_values<double>(length, 1);
    const double alone = squares_of(block)[0];
    auto x = random_values<double>(5 * kNormBlock, 2);
    std::copy(block.begin(), block.end(), x.begin() + 4 * kNormBlock);
    x.resize(static_cast<size_t>(4 * kNormBlock + length));
    for (const int threads : {1, 3}) {
      EXPECT_EQ(squares_of(x, threads)[4], alone);
    }
    std::vector<double> shifted(block.size() + 3);
    std::copy(block.begin(), block.end(), shifted.begin() + 3);
    double sum = 0;
    with_threads(1, [&](Stream& stream) {
      sum_of_squares(view_of(&sum, {1}), view(std::as_const(shifted)).slice(3, length + 3), stream);
    });
    EXPECT_EQ(sum, alone);
  }
}

// bf16 gradients: each is a number of fp32, and sums to the bits of that.
TEST(SumOfSquares, OfBf16AreThoseOfTheSameNumbersInFp32) {
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{33}, kNormBlock + 1}) {
    const auto x = random_halves<BFloat16>(n, 1);
    std::vector<float> wide(x.size());
    std::transform(x.begin(), x.end(), wide.begin(), [](BFloat16 value) { return to_float(value); });
    EXPECT_TRUE(same_bits(squares_of(x), squares_of(wide))) << n;
  }
}

TEST(SumOfSquares, RefusesFp16) {
  EXPECT_THROW(squares_of(std::vector<Float16>(3)), Error);
}

TEST(SumOfSquares, ZerosBehindTheEndChangeNothing) {
  auto x = random_values<float>(1001, 1);
  const double without = squares_of(x)[0];
  x.resize(kNormBlock);
  EXPECT_EQ(squares_of(x)[0], without);
}

TEST(SumOfSquares, InfinityAndNanPassThrough) {
  for (const size_t at : {0u, 500u, 999u}) {
    std::vector<float> x(1000, 1.0f);
    x[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(squares_of(x)[0]));
    x[at] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(squares_of(x)[0], std::numeric_limits<double>::infinity());
    x[at] = std::numeric_limits<float>::max();  // its square is finite in fp64
    EXPECT_TRUE(std::isfinite(squares_of(x)[0]));
  }
}

TEST(SumInOrder, AddsInAscendingOrderInFp64) {
  for (const int64_t n : {0, 1, 31, 33, 1000}) {
    const auto x = random_values<float>(n, 1);
    double expected = 0;
    for (const float value : x) {
      expected += static_cast<double>(value);
    }
    double total = -1;
    on_queued_stream([&](Stream& stream) { sum_in_order(view_of(&total, {1}), view(x), stream); });
    EXPECT_EQ(total, expected);
  }
}

TEST(SumInOrder, RefusesATotalThatIsNotFp64) {
  const std::vector<float> x(3);
  float total = 0;
  EXPECT_THROW(with_threads(1, [&](Stream& stream) { sum_in_order(view_of(&total, {1}), view(x), stream); }), Error);
}

}  // namespace
}  // namespace ashlar::kernels
