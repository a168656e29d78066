#include "kernels/cuda/reduce.h"

#include <limits>

#include "kernels/cpu/reduce.h"
#include "kernels/reduce.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

template <typename T>
std::vector<double> squares_of(const std::vector<T>& x, size_t shift = 0) {
  const auto n = static_cast<int64_t>(x.size());
  return under_every_order(fmt::format("sum_of_squares n {} shift {}", n, shift), [&] {
    const OnDevice<T> device_x(x, shift);
    const OnDevice<double> blocks(static_cast<size_t>((n + kNormBlock - 1) / kNormBlock));
    cuda::sum_of_squares(blocks.get(), device_x.get(), element_of<T>(), n, nullptr);
    return std::array{blocks.values()};
  })[0];
}

TEST(CudaSumOfSquares, EqualsTheCpu) {
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{33}, kNormBlock, kNormBlock + 1, 3 * kNormBlock - 5}) {
    const auto x = random_values<float>(n, 1);
    std::vector<double> expected(static_cast<size_t>((n + kNormBlock - 1) / kNormBlock));
    cpu::sum_of_squares(expected.data(), x.data(), n);
    expect_close(squares_of(x), expected, 1e-13, fmt::format("n {}", n));
  }
}

TEST(CudaSumOfSquares, OfBf16IsThatOfTheSameNumbersInFp32) {
  for (const int64_t n : {int64_t{1}, int64_t{31}, int64_t{33}, kNormBlock + 1}) {
    const auto x = random_elements<BFloat16>(n, 1);
    const auto expected = squares_of(as_float(x));
    EXPECT_EQ(squares_of(x), expected) << n;
    EXPECT_EQ(squares_of(x, 1), expected) << n;
  }
}

// Who owns a block must not show.
TEST(CudaSumOfSquares, ABlockGivesTheSameBitsWhereverItSits) {
  const auto block = random_values<float>(1001, 1);
  const double alone = squares_of(block)[0];
  EXPECT_EQ(squares_of(block, 1)[0], alone);
  auto behind = random_values<float>(kNormBlock, 2);
  behind.insert(behind.end(), block.begin(), block.end());
  EXPECT_EQ(squares_of(behind)[1], alone);
  auto padded = block;
  padded.resize(kNormBlock);
  EXPECT_EQ(squares_of(padded)[0], alone);
}

TEST(CudaSumOfSquares, InfinityAndNanPassThrough) {
  for (const size_t at : {0u, 500u, 999u}) {
    std::vector<float> x(1000, 1.0f);
    x[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(squares_of(x)[0]));
    x[at] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(squares_of(x)[0], std::numeric_limits<double>::infinity());
    x[at] = std::numeric_limits<float>::max();
    EXPECT_TRUE(std::isfinite(squares_of(x)[0]));
  }
}

template <typename T>
void check_sum_in_order() {
  for (const int64_t n : {0, 1, 31, 33, 1024, 1025, 3000}) {
    const std::vector<float> values = random_values<float>(n, 1);
    const std::vector<T> x(values.begin(), values.end());
    double expected = -1;
    cpu::sum_in_order(&expected, x.data(), n);
    const auto outputs = under_every_order(fmt::format("sum_in_order n {}", n), [&] {
      const OnDevice<T> device_x(x);
      const OnDevice<double> total(size_t{1});
      cuda::sum_in_order(total.get(), device_x.get(), n, nullptr);
      return std::array{total.values()};
    });
    EXPECT_EQ(outputs[0][0], expected) << n;
  }
}

TEST(CudaSumInOrder, HasTheBitsOfTheCpu) {
  check_sum_in_order<float>();
  check_sum_in_order<double>();
}

}  // namespace
}  // namespace ashlar::kernels
