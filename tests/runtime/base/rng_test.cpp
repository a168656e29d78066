#include "runtime/base/rng.h"

#include <gtest/gtest.h>

#include <vector>

#include <cmath>
#include <set>

namespace ashlar {
namespace {

// Known answers of philox4x32-10 that the authors publish with their library.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox_4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox_4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox_4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(StreamOf, IsFnv1a) {
  EXPECT_EQ(stream_of(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(stream_of("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(stream_of("foobar"), 0x85944171f73967e8ull);
}

TEST(PhiloxStream, NumbersAreAddressedByIndex) {
  const PhiloxStream stream(1234, RngPurpose::kInit, stream_of("wte"));
  const PhiloxStream again(1234, RngPurpose::kInit, stream_of("wte"));
  for (const uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{1} << 33, (uint64_t{1} << 40) + 3}) {
    EXPECT_EQ(stream.word(index), stream.block(index / 4)[index % 4]);
    EXPECT_EQ(stream.word(index), again.word(index));
    EXPECT_EQ(stream.normal(index), again.normal(index));
  }
}

TEST(PhiloxStream, SeedPurposeStreamAndHighIndexBitsAllMatter) {
  std::set<uint32_t> words;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 32}) {
    for (const RngPurpose purpose : {RngPurpose::kInit, RngPurpose::kShuffle, RngPurpose::kDropout}) {
      for (const uint64_t stream : {stream_of("a"), stream_of("b"), stream_of("a") ^ (uint64_t{1} << 63)}) {
        for (const uint64_t index : {uint64_t{0}, uint64_t{4}, uint64_t{1} << 35}) {
          words.insert(PhiloxStream(seed, purpose, stream).word(index));
        }
      }
    }
  }
  EXPECT_EQ(words.size(), 3u * 3 * 3 * 3);
}

// Sampling errors of 200,000 draws are 1/sqrt(200,000) = 0.0022; the bounds are five of them.
TEST(PhiloxStream, UniformAndNormalHaveTheirMoments) {
  const PhiloxStream stream(5, RngPurpose::kTest, 9);
  constexpr uint64_t kDraws = 200000;
  double uniform_sum = 0, uniform_squares = 0, sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0;
  uint64_t beyond_two = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = stream.uniform(i);
    ASSERT_TRUE(u >= 0 && u < 1);
    uniform_sum += u;
    uniform_squares += u * u;
    const double x = static_cast<double>(stream.normal(i));
    ASSERT_LE(std::abs(x), 6.67);  // sqrt(2 * 32 * ln 2)
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    neighbours += x * static_cast<double>(stream.normal(i + 1));
    beyond_two += std::abs(x) > 2;
  }
  const double n = kDraws;
  EXPECT_NEAR(uniform_sum / n, 0.5, 0.0033);
  EXPECT_NEAR(uniform_squares / n, 1.0 / 3, 0.0034);
  EXPECT_NEAR(sum / n, 0, 0.011);
  EXPECT_NEAR(squares / n, 1, 0.016);
  EXPECT_NEAR(cubes / n, 0, 0.044);
  EXPECT_NEAR(fourths / n, 3, 0.11);
  EXPECT_NEAR(neighbours / n, 0, 0.011);
  EXPECT_NEAR(static_cast<double>(beyond_two) / n, 0.0455, 0.0024);
}

TEST(PhiloxStream, BelowIsUniformAndStaysBelow) {
  const PhiloxStream stream(6, RngPurpose::kShuffle, 0);
  constexpr uint64_t kDraws = 70000;
  uint64_t counts[7] = {};
  for (uint64_t i = 0; i < kDraws; ++i) {
    const uint64_t value = stream.below(i, 7);
    ASSERT_LT(value, 7u);
    ++counts[value];
  }
  for (const uint64_t count : counts) {
    EXPECT_NEAR(static_cast<double>(count), 10000, 5 * std::sqrt(10000.0 * 6 / 7));
  }
  uint64_t high = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t value = stream.below(i, 0xffffffffu);
    ASSERT_LT(value, 0xffffffffu);
    high += value > 0x7fffffffu;
    ASSERT_EQ(stream.below(i, 1), 0u);
  }
  EXPECT_NEAR(static_cast<double>(high), 500, 80);
}

TEST(PhiloxStream, NormalsAreTheNormalsOneByOne) {
  const PhiloxStream random(11, RngPurpose::kTest, stream_of("normals"));
  for (const uint64_t first : {0u, 1u, 2u, 3u, 4u, 1001u}) {
    for (const size_t count : {0u, 1u, 2u, 3u, 4u, 5u, 33u}) {
      std::vector<float> many(count);
      random.normals(first, many);
      for (size_t at = 0; at < count; ++at) {
        EXPECT_EQ(many[at], random.normal(first + at)) << first << " + " << at;
      }
    }
  }
}

}  // namespace
}  // namespace ashlar
