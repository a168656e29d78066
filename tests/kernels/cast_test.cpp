#include "kernels/cast.h"

#include "tests/kernels/half_support.h"

namespace ashlar::kernels {
namespace {

template <typename Out, typename In>
std::vector<Out> cast_to(const std::vector<In>& in) {
  std::vector<Out> out(in.size());
  on_queued_stream([&](Stream& stream) { cast(view(out), view(in), stream); });
  return out;
}

template <typename T>
std::vector<T> all_patterns() {
  std::vector<T> values(65536);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i].bits = static_cast<uint16_t>(i);
  }
  return values;
}

// A NaN stays a NaN of the same sign; everything else keeps its bits.
template <typename Half>
void check_there_and_back() {
  const auto halves = all_patterns<Half>();
  const auto wide = cast_to<float>(halves);
  const auto back = cast_to<Half>(wide);
  for (size_t i = 0; i < halves.size(); ++i) {
    if (std::isnan(to_float(halves[i]))) {
      ASSERT_TRUE(std::isnan(wide[i]) && std::isnan(to_float(back[i]))) << i;
      ASSERT_EQ(back[i].bits & 0x8000u, halves[i].bits & 0x8000u) << i;
    } else {
      ASSERT_EQ(wide[i], to_float(halves[i])) << i;
      ASSERT_EQ(back[i].bits, halves[i].bits) << i;
    }
  }
  EXPECT_TRUE(same_bits(cast_to<Half>(halves), halves));  // a copy, NaN included
}

TEST(Cast, AllPatternsGoToFp32AndBack) {
  check_there_and_back<BFloat16>();
  check_there_and_back<Float16>();
}

// The middle between neighbours and a step to each side of it. runtime/base/dtype_test compares these conversions with
// the formats' definitions.
template <typename Half>
void check_rounding() {
  std::vector<float> values;
  std::vector<Half> expected;
  const auto convert = [](float x) { return cpu::narrow<Half>(x); };
  for (uint32_t bits = 0; bits < 65535; ++bits) {
    const float low = to_float(Half{static_cast<uint16_t>(bits)});
    const float high = to_float(Half{static_cast<uint16_t>(bits + 1)});
    if (!std::isfinite(low) || !std::isfinite(high)) {
      continue;
    }
    const float middle = low + (high - low) / 2;
    for (const float x : {std::nextafter(middle, low), middle, std::nextafter(middle, high)}) {
      values.push_back(x);
      expected.push_back(convert(x));
      const bool is_even = bits % 2 == 0;
      const uint32_t nearest = x == middle                              ? (is_even ? bits : bits + 1)
                               : std::abs(x - low) < std::abs(x - high) ? bits
                                                                        : bits + 1;
      if (bits != 0x7fff) {  // between the largest positive pattern and -0 lies nothing
        ASSERT_EQ(expected.back().bits, nearest) << bits;
      }
    }
  }
  EXPECT_TRUE(same_bits(cast_to<Half>(values), expected));
}

TEST(Cast, RoundsToNearestEven) {
  check_rounding<BFloat16>();
  check_rounding<Float16>();
}

TEST(Cast, BetweenHalvesGoesThroughFp32) {
  const auto bf16 = all_patterns<BFloat16>();
  const auto fp16 = cast_to<Float16>(bf16);
  for (size_t i = 0; i < bf16.size(); ++i) {
    ASSERT_EQ(fp16[i].bits, to_f16(to_float(bf16[i])).bits) << i;
  }
  const auto halves = all_patterns<Float16>();
  const auto other = cast_to<BFloat16>(halves);
  for (size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(other[i].bits, to_bf16(to_float(halves[i])).bits) << i;
  }
}

TEST(Cast, RefusesWhatItDoesNotConvert) {
  std::vector<int32_t> integers(4);
  std::vector<double> doubles(4);
  std::vector<float> floats(4), three(3);
  with_threads(1, [&](Stream& stream) {
    EXPECT_THROW(cast(view(floats), view(integers), stream), Error);
    EXPECT_THROW(cast(view(doubles), view(floats), stream), Error);
    EXPECT_THROW(cast(view(floats), view(three), stream), Error);
  });
}

}  // namespace
}  // namespace ashlar::kernels
