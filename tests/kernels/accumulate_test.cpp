#include "kernels/accumulate.h"

#include "kernels/cpu/loops.h"
#include "tests/kernels/half_support.h"

namespace ashlar::kernels {
namespace {

template <typename Acc, typename X>
std::vector<Acc> accumulated(std::vector<Acc> acc, const std::vector<X>& x, Write write) {
  on_queued_stream([&](Stream& stream) { accumulate(view(acc), view(x), write, stream); });
  return acc;
}

template <typename Acc_, typename X_>
struct Pair {
  using Acc = Acc_;
  using X = X_;
};
template <typename P>
class Accumulate : public testing::Test {};
using Pairs = testing::Types<Pair<float, float>, Pair<float, BFloat16>, Pair<BFloat16, float>, Pair<BFloat16, BFloat16>,
                             Pair<double, double>>;
TYPED_TEST_SUITE(Accumulate, Pairs);

// The sum of two fp32 numbers in double, rounded to fp32, is their fp32 sum (53 bits are more than 2 * 24 + 1), so the
// oracle gives bits.
TYPED_TEST(Accumulate, IsTheSumRoundedOnce) {
  using Acc = typename TypeParam::Acc;
  using X = typename TypeParam::X;
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{31}, int64_t{33}, cpu::kBlock + 1}) {
    const auto acc = rounded<Acc>(random_values<double>(n, 1, 3));
    const auto x = rounded<X>(random_values<double>(n, 2));
    std::vector<double> sums = widened(acc);
    const std::vector<double> added = widened(x);
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += added[i];
    }
    EXPECT_TRUE(same_bits(accumulated(acc, x, Write::kAdd), rounded<Acc>(sums))) << n;
    EXPECT_TRUE(same_bits(accumulated(acc, x, Write::kOverwrite), rounded<Acc>(added))) << n;
  }
}

TYPED_TEST(Accumulate, OverwritesWhatIsNotANumber) {
  using Acc = typename TypeParam::Acc;
  using X = typename TypeParam::X;
  const auto nan = rounded<Acc>(std::vector<double>(33, std::nan("")));
  const auto x = rounded<X>(random_values<double>(33, 2));
  EXPECT_TRUE(same_bits(accumulated(nan, x, Write::kOverwrite), rounded<Acc>(widened(x))));
  for (const double value : widened(accumulated(nan, x, Write::kAdd))) {
    EXPECT_TRUE(std::isnan(value));
  }
}

TYPED_TEST(Accumulate, BitsDoNotDependOnCutsOrThreads) {
  using Acc = typename TypeParam::Acc;
  using X = typename TypeParam::X;
  const int64_t n = 2 * cpu::kBlock + 333;
  const auto x = rounded<X>(random_values<double>(n, 2));
  auto whole = rounded<Acc>(random_values<double>(n, 1));
  auto cut = whole;
  with_threads(1, [&](Stream& stream) { accumulate(view(whole), view(x), Write::kAdd, stream); });
  with_threads(3, [&](Stream& stream) {
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, 998}, {998, n}}) {
      accumulate(view(cut).slice(begin, end), view(x).slice(begin, end), Write::kAdd, stream);
    }
  });
  EXPECT_TRUE(same_bits(whole, cut));
}

// What 16-bit gradients are summed for: in fp32 the small parts of many micro-batches are kept.
TEST(AccumulateInFp32, KeepsWhatBf16Loses) {
  const std::vector<BFloat16> small(7, to_bf16(0x1p-9f));
  std::vector<float> wide(7, 1.0f);
  std::vector<BFloat16> narrow(7, to_bf16(1.0f));
  for (int i = 0; i < 512; ++i) {
    wide = accumulated(wide, small, Write::kAdd);
    narrow = accumulated(narrow, small, Write::kAdd);
  }
  EXPECT_EQ(wide.back(), 2.0f);
  EXPECT_EQ(to_float(narrow.back()), 1.0f);
}

TEST(AccumulateRefuses, OtherTypesAndSizes) {
  std::vector<float> floats(4), three(3);
  std::vector<double> doubles(4);
  std::vector<Float16> halves(4);
  EXPECT_THROW(accumulated(floats, doubles, Write::kAdd), Error);
  EXPECT_THROW(accumulated(doubles, floats, Write::kOverwrite), Error);
  EXPECT_THROW(accumulated(floats, halves, Write::kAdd), Error);
  EXPECT_THROW(accumulated(floats, three, Write::kAdd), Error);
}

}  // namespace
}  // namespace ashlar::kernels
