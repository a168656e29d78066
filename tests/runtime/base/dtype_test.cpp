#include "runtime/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ashlar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value of a 16-bit float by its definition: sign, exponent bits, fraction bits.
double value_of(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(bits & ((1u << fraction_bits) - 1), -fraction_bits);
  const double sign = bits & 0x8000u ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
}

// All 65,536 patterns: the value is right, and converting back gives the same bits (for NaN: a NaN of the same sign).
template <typename Half, typename ToHalf>
void check_all_patterns(ToHalf to_half, int exponent_bits, int fraction_bits) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const float value = to_float(half);
    const double expected = value_of(bits, exponent_bits, fraction_bits);
    const uint16_t back = to_half(value).bits;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
      ASSERT_TRUE(std::isnan(to_float(Half{back}))) << std::hex << bits;
      ASSERT_EQ(back & 0x8000u, bits & 0x8000u) << std::hex << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << std::hex << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000u) != 0) << std::hex << bits;
      ASSERT_EQ(back, bits) << std::hex << bits;
    }
  }
}

// Between every finite pattern and the next larger one: the middle goes to the even one, a step beside it to the
// nearer. The value above the largest finite one is infinity.
template <typename Half, typename ToHalf>
void check_all_roundings(ToHalf to_half, int exponent_bits, int fraction_bits) {
  const uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  for (uint32_t low = 0; low < infinity; ++low) {
    const uint32_t high = low + 1;
    const double below = value_of(low, exponent_bits, fraction_bits);
    const double above = high == infinity ? below + (below - value_of(low - 1, exponent_bits, fraction_bits))
                                          : value_of(high, exponent_bits, fraction_bits);
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(middle), (below + above) / 2) << "the middle must be a float for this test";
    const auto expect = [&](float value, uint32_t bits) {
      ASSERT_EQ(to_half(value).bits, bits) << std::hex << low;
      ASSERT_EQ(to_half(-value).bits, bits | 0x8000u) << std::hex << low;
    };
    expect(middle, low % 2 == 0 ? low : high);
    expect(std::nextafter(middle, kInfinity), high);
    expect(std::nextafter(middle, 0.0f), low);
  }
}

TEST(BFloat16, AllPatternsConvertAndReturn) {
  check_all_patterns<BFloat16>([](float value) { return to_bf16(value); }, 8, 7);
}
TEST(BFloat16, RoundsToNearestEven) {
  check_all_roundings<BFloat16>([](float value) { return to_bf16(value); }, 8, 7);
}
TEST(Float16, AllPatternsConvertAndReturn) {
  check_all_patterns<Float16>([](float value) { return to_f16(value); }, 5, 10);
}
TEST(Float16, RoundsToNearestEven) {
  check_all_roundings<Float16>([](float value) { return to_f16(value); }, 5, 10);
}

TEST(Float16, SaturatesToInfinityAndFlushesOnlyBelowHalfTheSmallest) {
  EXPECT_EQ(to_f16(1e10f).bits, 0x7c00u);
  EXPECT_EQ(to_f16(-kInfinity).bits, 0xfc00u);
  EXPECT_EQ(to_f16(1e-30f).bits, 0u);
  EXPECT_EQ(to_f16(-0.0f).bits, 0x8000u);
}

// A NaN whose payload lies only in the bits that are cut off must not become infinity.
TEST(BFloat16, NanWithALowPayloadStaysNan) {
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_f16(std::bit_cast<float>(0xff800001u)))));
}

TEST(DType, SizesNamesAndTypesAgree) {
  EXPECT_EQ(dtype_bytes(DTypeOf<float>::value), sizeof(float));
  EXPECT_EQ(dtype_bytes(DTypeOf<double>::value), sizeof(double));
  EXPECT_EQ(dtype_bytes(DTypeOf<BFloat16>::value), sizeof(BFloat16));
  EXPECT_EQ(dtype_bytes(DTypeOf<Float16>::value), sizeof(Float16));
  EXPECT_EQ(dtype_bytes(DTypeOf<int32_t>::value), sizeof(int32_t));
  EXPECT_EQ(dtype_bytes(DTypeOf<int64_t>::value), sizeof(int64_t));
  EXPECT_EQ(dtype_bytes(DTypeOf<uint8_t>::value), sizeof(uint8_t));
  EXPECT_EQ(dtype_name(DType::kF32), "fp32");
  EXPECT_EQ(dtype_name(DType::kBF16), "bf16");
  EXPECT_EQ(dtype_name(DType::kF16), "fp16");
}

}  // namespace
}  // namespace ashlar
