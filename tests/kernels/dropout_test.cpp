// Dropout of the residual stream's branches on the CPU: the mask against Philox called per element, the same on every
// cut of the rows, forward and backward through one mask.
#include "kernels/dropout.h"

#include <limits>

#include "tests/kernels/half_support.h"

namespace ashlar::kernels {
namespace {

Dropout dropout_of(double probability, int64_t first_sample = 0) {
  return {.probability = probability, .key = {0x1234ABCDu, 0x9876FEDCu}, .first_sample = first_sample};
}

// The definition in kernels/dropout.h, element by element.
double factor(const Dropout& d, int64_t sample, int64_t position, int64_t channel) {
  const PhiloxBlock words = philox_4x32_10(
      {static_cast<uint32_t>(channel / 4), static_cast<uint32_t>(position), 0, static_cast<uint32_t>(sample)},
      {d.key[0], d.key[1]});
  return words[static_cast<size_t>(channel % 4)] >= d.probability * 0x1p32 ? 1.0 / (1.0 - d.probability) : 0.0;
}

constexpr int64_t kFirst = 11;  // row

struct Case {
  int64_t batch, length, columns;
};

template <typename T>
void compare(const Case& c, const Dropout& dropout, double slack) {
  const Shape shape{c.batch, c.length, c.columns};
  const int64_t n = shape.num_elements();
  const auto x = random_halves<T>(n, 1), residual = random_halves<T>(n, 2), bias = random_halves<T>(c.columns, 3);
  std::vector<double> want, want_plain;
  int64_t dropped = 0;
  for (int64_t at = 0; at < n; ++at) {
    const int64_t row = at / c.columns, channel = at % c.columns;
    const double f = factor(dropout, (dropout.first_sample + (kFirst + row) / c.length) & 0xFFFFFFFF,
                            (kFirst + row) % c.length, channel);
    const auto value = [](T v) { return static_cast<double>(cpu::widen(v)); };
    const auto i = static_cast<size_t>(at);
    want.push_back(value(residual[i]) + f * (value(x[i]) + value(bias[static_cast<size_t>(channel)])));
    want_plain.push_back(f * value(x[i]));
    dropped += f == 0 ? 1 : 0;
  }
  for (const int num_threads : {1, 3}) {
    auto fused = x, plain = x;
    with_threads(num_threads, [&](Stream& stream) {
      dropout_forward(view(fused, shape), view(fused, shape), view(bias), view(residual, shape), dropout,
                      {kFirst, c.length}, stream);
      dropout_backward(view(plain, shape), view(plain, shape), dropout, {kFirst, c.length}, stream);
      stream.synchronize();
    });
    expect_rounded(fused, want, slack, "fused", 4);
    expect_rounded(plain, want_plain, slack, "plain", 4);
  }
  if (n > 10000) {  // five standard deviations
    EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(n), dropout.probability,
                5 * std::sqrt(0.25 / static_cast<double>(n)));
  }
}

TEST(Dropout, DropsWhatPhiloxSays) {
  for (const double probability : {0.1, 0.5, 0.9}) {
    for (const Case& c : {Case{1, 1, 1}, Case{2, 3, 7}, Case{3, 5, 64}, Case{2, 40, 257}}) {
      const Dropout dropout = dropout_of(probability, 4294967295);  // sample 2^32 - 1 is followed by 0
      compare<double>(c, dropout, 1e-14);
      compare<float>(c, dropout, 3e-6);
      compare<BFloat16>(c, dropout, 3e-6);
      compare<Float16>(c, dropout, 3e-6);
    }
  }
}

// What a data rank draws for its samples, and a rank that holds a part of the flattened rows for those: parts that
// begin within a sample and that reach over its end.
TEST(Dropout, PartsOfABatchDrawTheWholeBatchsMask) {
  const Shape whole{4, 6, 33};
  auto x = random_values<float>(whole.num_elements(), 1);
  auto together = x;
  on_queued_stream([&](Stream& stream) {
    dropout_backward(view(together, whole), view(x, whole), dropout_of(0.3, 8), {0, 6}, stream);
    for (int64_t sample = 0; sample < 2; ++sample) {
      const TensorView rows = view(x, {24, 33}).slice(sample * 6, sample * 6 + 6);
      dropout_backward(rows, rows, dropout_of(0.3, 8 + sample), {0, 6}, stream);
    }
    for (const int64_t begin : {0, 4, 8}) {  // of the last two samples
      const TensorView rows = view(x, {24, 33}).slice(12 + begin, 16 + begin);
      dropout_backward(rows, rows, dropout_of(0.3, 10), {begin, 6}, stream);
    }
  });
  EXPECT_TRUE(same_bits(x, together));
}

TEST(Dropout, ADroppedInfinityIsZero) {
  std::vector<float> x(4096, std::numeric_limits<float>::infinity());
  on_queued_stream([&](Stream& stream) {
    dropout_backward(view(x, {1, 1, 4096}), view(x, {1, 1, 4096}), dropout_of(0.5), {0, 1}, stream);
  });
  for (size_t i = 0; i < x.size(); ++i) {
    const bool kept = factor(dropout_of(0.5), 0, 0, static_cast<int64_t>(i)) > 0;
    ASSERT_EQ(x[i], kept ? std::numeric_limits<float>::infinity() : 0.0f) << i;
  }
}

}  // namespace
}  // namespace ashlar::kernels
