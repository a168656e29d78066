// Dropout of attention on the CPU: the mask against Philox called per element, the gradient against finite differences,
// and a mask that is the same wherever a head is computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/element.h"
#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {
namespace {

template <typename T>
struct Result {
  std::vector<T> out, dqkv;
  std::vector<cpu::Compute<T>> lse;
};

template <typename T>
Result<T> run(const cpu::AttentionSizes& s, const std::vector<T>& qkv, const std::vector<T>& dout) {
  const auto rows = static_cast<size_t>(s.batch * s.heads * s.sequence);
  Result<T> r{std::vector<T>(dout.size()), std::vector<T>(qkv.size()), std::vector<cpu::Compute<T>>(rows)};
  std::vector<cpu::Compute<T>> delta(rows);
  cpu::attention_forward(r.out.data(), r.lse.data(), qkv.data(), s);
  cpu::attention_backward(r.dqkv.data(), dout.data(), qkv.data(), r.out.data(), r.lse.data(), delta.data(), s);
  return r;
}

Dropout dropout_of(double probability, int64_t first_sample = 0, int64_t first_head = 0) {
  return {probability, {0x1234ABCDu, 0x9876FEDCu}, first_sample, first_head};
}

// The definition in kernels/plain_types.h, element by element.
double factor(const Dropout& d, int64_t sample, int64_t head, int64_t query, int64_t key) {
  const PhiloxBlock words = philox_4x32_10({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                                            static_cast<uint32_t>(head), static_cast<uint32_t>(sample)},
                                           {d.key[0], d.key[1]});
  return words[static_cast<size_t>(key % 4)] >= d.probability * 0x1p32 ? 1.0 / (1.0 - d.probability) : 0.0;
}

// With queries of zero all probabilities of query i are 1 / (i + 1), and with value e_j of key j (D = T) element j of
// its output is the probability that met key j.
TEST(AttentionDropout, DropsWhatPhiloxSays) {
  for (const double probability : {0.1, 0.5, 0.9}) {
    constexpr int64_t kLength = 200;
    const cpu::AttentionSizes s{2, kLength, 2, kLength, 1.0, dropout_of(probability, 4294967295, 5)};
    std::vector<double> qkv(static_cast<size_t>(s.batch * kLength * 3 * s.heads * kLength));
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t t = 0; t < kLength; ++t) {
        for (int64_t h = 0; h < s.heads; ++h) {
          qkv[static_cast<size_t>((((b * kLength + t) * 3 + 2) * s.heads + h) * kLength + t)] = 1;
        }
      }
    }
    const Result<double> r = run(s, qkv, std::vector<double>(static_cast<size_t>(2 * kLength * 2 * kLength)));
    int64_t dropped = 0;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t i = 0; i < kLength; ++i) {
        for (int64_t h = 0; h < s.heads; ++h) {
          for (int64_t j = 0; j < kLength; ++j) {
            // Sample 2^32 - 1 is followed by 0.
            const double want =
                j <= i ? factor(s.dropout, b == 0 ? 4294967295 : 0, 5 + h, i, j) / static_cast<double>(i + 1) : 0.0;
            const double got = r.out[static_cast<size_t>(((b * kLength + i) * s.heads + h) * kLength + j)];
            ASSERT_NEAR(got, want, 1e-14) << "sample " << b << " head " << h << " query " << i << " key " << j;
            dropped += j <= i && got == 0.0 ? 1 : 0;
          }
        }
      }
    }
    // 80 400 independent elements: five standard deviations are at most 0.009.
    EXPECT_NEAR(static_cast<double>(dropped) / (4.0 * kLength * (kLength + 1) / 2), probability, 0.009);
  }
}

TEST(AttentionDropout, GradientAgreesWithFiniteDifferences) {
  for (const int64_t length : {5, 131}) {
    const cpu::AttentionSizes s{1, length, 2, 3, 0.6, dropout_of(0.3, 17, 2)};
    auto qkv = random_values<double>(length * 3 * s.heads * s.head_dim, 1, 0.8);
    const auto dout = random_values<double>(length * s.heads * s.head_dim, 2);
    const Result<double> base = run(s, qkv, dout);
    std::vector<double> out(dout.size()), lse(static_cast<size_t>(s.heads * length));
    const auto loss = [&] {
      cpu::attention_forward(out.data(), lse.data(), qkv.data(), s);
      return dot(out, dout);
    };
    const size_t stride = std::max<size_t>(1, qkv.size() / 61);
    for (size_t i = 0; i < qkv.size(); i += stride) {
      const double kept = qkv[i];
      qkv[i] = kept + 1e-5;
      const double above = loss();
      qkv[i] = kept - 1e-5;
      const double below = loss();
      qkv[i] = kept;
      EXPECT_NEAR(base.dqkv[i], (above - below) / 2e-5, 1e-8 * (1 + std::abs(base.dqkv[i]))) << "element " << i;
    }
    const Result<float> single =
        run(s, std::vector<float>(qkv.begin(), qkv.end()), std::vector<float>(dout.begin(), dout.end()));
    expect_close(single.out, base.out, 2e-6, "out");
    expect_close(single.lse, base.lse, 2e-6, "lse");
    expect_close(single.dqkv, base.dqkv, 5e-6, "dqkv");
  }
}

// 16-bit values are widened when loaded and rounded when stored: the mask is the same.
template <typename T>
void compare_with_double(double rounding) {
  const cpu::AttentionSizes s{2, 140, 2, 24, 0.2, dropout_of(0.3, 17, 2)};
  const auto rounded = [](const std::vector<float>& values) {
    std::vector<T> to;
    for (const float x : values) {
      to.push_back(cpu::narrow<T>(x));
    }
    return to;
  };
  const auto widened = [](const std::vector<T>& values) {
    std::vector<double> to;
    for (const T x : values) {
      to.push_back(static_cast<double>(cpu::widen(x)));
    }
    return to;
  };
  const auto qkv = rounded(random_values<float>(2 * 140 * 3 * 2 * 24, 5));
  const auto dout = rounded(random_values<float>(2 * 140 * 2 * 24, 6));
  const Result<double> want = run(s, widened(qkv), widened(dout));
  const Result<T> got = run(s, qkv, dout);
  expect_close(widened(got.out), want.out, rounding, "out");
  expect_close(got.lse, want.lse, 2e-6, "lse");
  expect_close(widened(got.dqkv), want.dqkv, 4 * rounding, "dqkv");  // delta is made of the rounded `out`
}

TEST(AttentionDropout, DropsTheSameIn16Bits) {
  compare_with_double<BFloat16>(0x1p-8);
  compare_with_double<Float16>(0x1p-11);
}

// Heads [first, first + count) of sample `sample` out of a tensor whose tokens have `parts` x heads x dim values.
std::vector<float> slice(const std::vector<float>& from, const cpu::AttentionSizes& s, int64_t parts, int64_t sample,
                         int64_t first, int64_t count) {
  std::vector<float> to;
  for (int64_t row = sample * s.sequence * parts; row < (sample + 1) * s.sequence * parts; ++row) {
    const auto begin = from.begin() + (row * s.heads + first) * s.head_dim;
    to.insert(to.end(), begin, begin + count * s.head_dim);
  }
  return to;
}

// Tensor ranks hold some of the heads, data ranks and micro-batches some of the samples.
TEST(AttentionDropout, GivesAHeadTheSameBitsOnEveryGrid) {
  const cpu::AttentionSizes whole{2, 140, 4, 24, 0.2, dropout_of(0.25, 1000, 8)};
  const auto qkv = random_values<float>(2 * 140 * 3 * 4 * 24, 3);
  const auto dout = random_values<float>(2 * 140 * 4 * 24, 4);
  const Result<float> all = run(whole, qkv, dout);
  const Result<float> undropped = run({2, 140, 4, 24, 0.2}, qkv, dout);
  EXPECT_TRUE(same_bits(all.lse, undropped.lse)) << "the softmax is not what is dropped";
  EXPECT_FALSE(same_bits(all.out, undropped.out));
  for (const int64_t sample : {0, 1}) {
    for (const int64_t first : {0, 2}) {
      const cpu::AttentionSizes part{1, 140, 2, 24, 0.2, dropout_of(0.25, 1000 + sample, 8 + first)};
      const Result<float> r =
          run(part, slice(qkv, whole, 3, sample, first, 2), slice(dout, whole, 1, sample, first, 2));
      EXPECT_TRUE(same_bits(r.out, slice(all.out, whole, 1, sample, first, 2))) << sample << ' ' << first;
      EXPECT_TRUE(same_bits(r.dqkv, slice(all.dqkv, whole, 3, sample, first, 2))) << sample << ' ' << first;
    }
  }
}

TEST(AttentionDropout, ThresholdIsTheLeastWordThatIsKept) {
  EXPECT_EQ(Dropout{.probability = 0.5}.threshold(), 0x80000000u);
  EXPECT_EQ(Dropout{.probability = 0.1}.threshold(), 429496730u);  // 429496729.6
  EXPECT_EQ(Dropout{.probability = 0x1p-40}.threshold(), 1u);
  EXPECT_EQ(Dropout{.probability = 1 - 0x1p-40}.threshold(), 0xFFFFFFFFu);
}

}  // namespace
}  // namespace ashlar::kernels
