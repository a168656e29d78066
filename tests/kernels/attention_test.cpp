// Attention against a naive oracle in double that does store T x T, and its gradient against finite differences.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "runtime/device/cpu/cpu_device.h"

namespace ashlar::kernels {
namespace {

struct Case {
  int64_t batch, sequence, heads, dim;
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(dim)); }
  Shape qkv() const { return {batch, sequence, 3, heads, dim}; }
  Shape out() const { return {batch, sequence, heads, dim}; }
  Shape lse() const { return {batch, heads, sequence}; }
};

// The oracle's results, and those of the kernel.
template <typename T>
struct Result {
  std::vector<T> out, lse, dqkv;
};

std::vector<double> random_values(int64_t n, unsigned seed, double size) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, size);
  std::vector<double> values(static_cast<size_t>(n));
  // Rounded to float, so that the fp32 kernel and the oracle see the same numbers.
  std::generate(values.begin(), values.end(),
                [&] { return static_cast<double>(static_cast<float>(normal(generator))); });
  return values;
}

Result<double> oracle(const Case& c, const std::vector<double>& qkv, const std::vector<double>& dout) {
  const auto at = [&](int64_t b, int64_t t, int64_t which, int64_t h) {
    return (((b * c.sequence + t) * 3 + which) * c.heads + h) * c.dim;
  };
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (int64_t d = 0; d < c.dim; ++d) {
      sum += a[d] * b[d];
    }
    return sum;
  };
  Result<double> r{std::vector<double>(dout.size()), std::vector<double>(static_cast<size_t>(c.lse().num_elements())),
                   std::vector<double>(qkv.size())};
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      for (int64_t i = 0; i < c.sequence; ++i) {
        std::vector<double> p(static_cast<size_t>(i + 1));
        const double* q = &qkv[at(b, i, 0, h)];
        for (int64_t j = 0; j <= i; ++j) {
          p[j] = c.scale() * dot(q, &qkv[at(b, j, 1, h)]);
        }
        const double largest = *std::max_element(p.begin(), p.end());
        double sum = 0;
        for (double& x : p) {
          x = std::exp(x - largest);
          sum += x;
        }
        r.lse[(b * c.heads + h) * c.sequence + i] = largest + std::log(sum);
        const int64_t o = ((b * c.sequence + i) * c.heads + h) * c.dim;
        for (int64_t j = 0; j <= i; ++j) {
          p[j] /= sum;
          for (int64_t d = 0; d < c.dim; ++d) {
            r.out[o + d] += p[j] * qkv[at(b, j, 2, h) + d];
          }
        }
        const double delta = dot(&dout[o], &r.out[o]);
        for (int64_t j = 0; j <= i; ++j) {
          const double ds = c.scale() * p[j] * (dot(&dout[o], &qkv[at(b, j, 2, h)]) - delta);
          for (int64_t d = 0; d < c.dim; ++d) {
            r.dqkv[at(b, i, 0, h) + d] += ds * qkv[at(b, j, 1, h) + d];
            r.dqkv[at(b, j, 1, h) + d] += ds * q[d];
            r.dqkv[at(b, j, 2, h) + d] += p[j] * dout[o + d];
          }
        }
      }
    }
  }
  return r;
}

// Runs the kernel on a stream; outputs start as NaN, so anything left unwritten shows.
template <typename T>
Result<T> run(const Case& c, const std::vector<double>& qkv_values, const std::vector<double>& dout_values,
              CpuStreamKind kind = CpuStreamKind::kInline) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const std::vector<T> qkv(qkv_values.begin(), qkv_values.end());
  const std::vector<T> dout(dout_values.begin(), dout_values.end());
  Result<T> r{std::vector<T>(dout.size(), nan), std::vector<T>(static_cast<size_t>(c.lse().num_elements()), nan),
              std::vector<T>(qkv.size(), nan)};
  std::vector<uint8_t> scratch(attention_backward_workspace_bytes(c.qkv(), DTypeOf<T>::value) + 64);
  CpuDevice device(kind);
  const auto stream = device.create_stream();
  void* aligned = scratch.data();
  size_t space = scratch.size();
  std::align(64, space - 64, aligned, space);
  const TensorView workspace = view_of(static_cast<uint8_t*>(aligned), {static_cast<int64_t>(scratch.size() - 64)});
  attention_forward(view_of(r.out.data(), c.out()), view_of(r.lse.data(), c.lse()), view_of(qkv.data(), c.qkv()),
                    c.scale(), Dropout{}, *stream);
  attention_backward(view_of(r.dqkv.data(), c.qkv()), view_of(dout.data(), c.out()), view_of(qkv.data(), c.qkv()),
                     view_of(r.out.data(), c.out()), view_of(r.lse.data(), c.lse()), c.scale(), Dropout{}, workspace,
                     *stream);
  stream->synchronize();
  return r;
}

// Largest error relative to the largest value.
template <typename T>
double relative_error(const std::vector<T>& got, const std::vector<double>& want) {
  double largest = 1e-30;
  double error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(static_cast<double>(got[i]))) {
      return std::numeric_limits<double>::infinity();
    }
    largest = std::max(largest, std::abs(want[i]));
    error = std::max(error, std::abs(static_cast<double>(got[i]) - want[i]));
  }
  return error / largest;
}

class Attention : public ::testing::TestWithParam<Case> {};

TEST_P(Attention, AgreesWithTheOracle) {
  const Case& c = GetParam();
  const auto qkv = random_values(c.qkv().num_elements(), 1, 1.0);
  const auto dout = random_values(c.out().num_elements(), 2, 1.0);
  const Result<double> want = oracle(c, qkv, dout);

  const Result<float> f32 = run<float>(c, qkv, dout);
  EXPECT_LT(relative_error(f32.out, want.out), 1e-6);
  EXPECT_LT(relative_error(f32.lse, want.lse), 1e-6);
  EXPECT_LT(relative_error(f32.dqkv, want.dqkv), 2e-6);

  const Result<double> f64 = run<double>(c, qkv, dout);
  EXPECT_LT(relative_error(f64.out, want.out), 1e-14);
  EXPECT_LT(relative_error(f64.lse, want.lse), 1e-14);
  EXPECT_LT(relative_error(f64.dqkv, want.dqkv), 1e-14);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Attention,
                         ::testing::Values(Case{1, 1, 1, 1}, Case{2, 1, 2, 8}, Case{1, 31, 2, 32}, Case{2, 33, 3, 16},
                                           Case{1, 64, 2, 64}, Case{2, 65, 2, 48}, Case{1, 127, 1, 80},
                                           Case{1, 200, 1, 64}, Case{1, 129, 1, 128}, Case{2, 97, 3, 7},
                                           Case{1, 70, 1, 33}, Case{1, 34, 1, 256}),
                         [](const ::testing::TestParamInfo<Case>& test) {
                           const Case& c = test.param;
                           return "B" + std::to_string(c.batch) + "T" + std::to_string(c.sequence) + "H" +
                                  std::to_string(c.heads) + "D" + std::to_string(c.dim);
                         });

TEST(AttentionGradient, AgreesWithFiniteDifferences) {
  for (const Case c : {Case{1, 5, 2, 3}, Case{1, 131, 1, 3}}) {
    auto qkv = random_values(c.qkv().num_elements(), 3, 0.8);
    const auto dout = random_values(c.out().num_elements(), 4, 1.0);
    const Result<double> base = run<double>(c, qkv, dout);
    CpuDevice device;
    const auto stream = device.create_stream();
    std::vector<double> out(dout.size()), lse(static_cast<size_t>(c.lse().num_elements()));
    const auto loss = [&] {
      attention_forward(view_of(out.data(), c.out()), view_of(lse.data(), c.lse()), view_of(qkv.data(), c.qkv()),
                        c.scale(), Dropout{}, *stream);
      stream->synchronize();
      return std::inner_product(out.begin(), out.end(), dout.begin(), 0.0);
    };
    const size_t stride = std::max<size_t>(1, qkv.size() / 61);  // coprime enough to meet q, k and v of every block
    for (size_t i = 0; i < qkv.size(); i += stride) {
      const double h = 1e-5;
      const double saved = qkv[i];
      qkv[i] = saved + h;
      const double up = loss();
      qkv[i] = saved - h;
      const double down = loss();
      qkv[i] = saved;
      EXPECT_NEAR(base.dqkv[i], (up - down) / (2 * h), 1e-8 * (1 + std::abs(base.dqkv[i]))) << "element " << i;
    }
  }
}

// Scores of about +-3000 overflow exp unless the largest is taken off first; and a softmax that picks one key exactly.
TEST(Attention, TakesLargeLogits) {
  const Case c{1, 130, 2, 32};
  auto qkv = random_values(c.qkv().num_elements(), 5, 1.0);
  for (int64_t t = 0; t < c.sequence; ++t) {
    for (int64_t i = 0; i < 2 * c.heads * c.dim; ++i) {
      qkv[t * 3 * c.heads * c.dim + i] *= 16.0;
    }
  }
  const auto dout = random_values(c.out().num_elements(), 6, 1.0);
  const Result<double> want = oracle(c, qkv, dout);
  ASSERT_GT(*std::max_element(want.lse.begin(), want.lse.end()), 700.0);
  const Result<float> got = run<float>(c, qkv, dout);
  // A score of 1000 is rounded by 3e-5, and the exponential makes that a relative error of a probability.
  EXPECT_LT(relative_error(got.out, want.out), 3e-4);
  EXPECT_LT(relative_error(got.lse, want.lse), 1e-6);
  EXPECT_LT(relative_error(got.dqkv, want.dqkv), 3e-3);
}

TEST(Attention, LetsNanThrough) {
  const Case c{1, 70, 1, 16};
  auto qkv = random_values(c.qkv().num_elements(), 7, 1.0);
  qkv[(66 * 3 + 1) * c.dim] = std::numeric_limits<double>::quiet_NaN();  // the key of position 66
  const auto dout = random_values(c.out().num_elements(), 8, 1.0);
  const Result<float> r = run<float>(c, qkv, dout);
  EXPECT_TRUE(std::isfinite(r.out[65 * c.dim]));
  EXPECT_TRUE(std::isnan(r.out[66 * c.dim]));
  EXPECT_TRUE(std::isnan(r.out[69 * c.dim]));
}

// A later key or value must not reach an earlier query: not even by a rounding error.
TEST(Attention, IsCausalToTheLastBit) {
  const Case c{1, 100, 2, 24};
  auto qkv = random_values(c.qkv().num_elements(), 9, 1.0);
  const auto dout = random_values(c.out().num_elements(), 10, 1.0);
  const Result<float> before = run<float>(c, qkv, dout);
  for (const int64_t changed : {99, 70, 64, 33, 8}) {
    for (int64_t i = changed * 3 * c.heads * c.dim; i < c.qkv().num_elements(); ++i) {
      qkv[i] = 5.0;
    }
    const Result<float> after = run<float>(c, qkv, dout);
    const size_t bytes = static_cast<size_t>(changed * c.heads * c.dim) * sizeof(float);
    EXPECT_EQ(std::memcmp(before.out.data(), after.out.data(), bytes), 0) << "changed from " << changed;
  }
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST(Attention, GivesEachSequenceTheSameBitsInAnyBatch) {
  const Case both{2, 75, 2, 32};
  const Case one{1, 75, 2, 32};
  const auto qkv = random_values(both.qkv().num_elements(), 11, 1.0);
  const auto dout = random_values(both.out().num_elements(), 12, 1.0);
  const Result<float> whole = run<float>(both, qkv, dout);
  const auto half = [](const auto& x) { return std::remove_cvref_t<decltype(x)>(x.begin() + x.size() / 2, x.end()); };
  const Result<float> second = run<float>(one, half(qkv), half(dout));
  EXPECT_TRUE(same_bits(half(whole.out), second.out));
  EXPECT_TRUE(same_bits(half(whole.lse), second.lse));
  EXPECT_TRUE(same_bits(half(whole.dqkv), second.dqkv));
}

TEST(Attention, GivesTheSameBitsOnAQueuedStreamAndWithAnyNumberOfThreads) {
  const Case c{2, 150, 3, 40};
  const auto qkv = random_values(c.qkv().num_elements(), 13, 1.0);
  const auto dout = random_values(c.out().num_elements(), 14, 1.0);
  const Result<float> inline_result = run<float>(c, qkv, dout);
  const auto expect_same = [&](const Result<float>& r) {
    EXPECT_TRUE(same_bits(r.out, inline_result.out));
    EXPECT_TRUE(same_bits(r.lse, inline_result.lse));
    EXPECT_TRUE(same_bits(r.dqkv, inline_result.dqkv));
  };
  expect_same(run<float>(c, qkv, dout, CpuStreamKind::kQueued));
#ifdef _OPENMP
  const int threads = omp_get_max_threads();
  for (const int n : {1, 2, 5}) {
    omp_set_num_threads(n);
    expect_same(run<float>(c, qkv, dout));
  }
  omp_set_num_threads(threads);
#endif
}

TEST(Attention, RefusesWrongShapesAndTooWideHeads) {
  CpuDevice device;
  const auto stream = device.create_stream();
  std::vector<float> data(3 * 257 * 4);
  const Case c{1, 2, 1, 4};
  EXPECT_THROW(attention_forward(view_of(data.data(), {1, 2, 4, 1}), view_of(data.data(), c.lse()),
                                 view_of(data.data(), c.qkv()), 1.0, Dropout{}, *stream),
               Error);
  const Case wide{1, 1, 1, 257};
  try {
    attention_forward(view_of(data.data(), wide.out()), view_of(data.data(), wide.lse()),
                      view_of(data.data(), wide.qkv()), 1.0, Dropout{}, *stream);
    FAIL() << "a head of 257 values was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("256"), std::string::npos);
  }
}

}  // namespace
}  // namespace ashlar::kernels
