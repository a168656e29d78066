// A naive oracle of attention in double, with the size of the roundings that a 16-bit kernel makes: of probabilities
// and of score gradients before a product, of `out` before delta, of each result.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/plain_types.h"
#include "runtime/base/dtype.h"
#include "runtime/base/rng.h"
#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {

struct AttentionCase {
  int64_t batch, length, heads, kv_heads, dim;
  double dropout = 0;
  double size = 1;   // of q, k and v
  size_t shift = 0;  // elements before each tensor: 1 breaks the alignment
  int64_t gap = 0;   // elements after v

  int64_t row() const { return (heads + 2 * kv_heads) * dim + gap; }  // q, k, v of a token beside each other
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(dim)); }
  Dropout mask() const { return {dropout, {0xC0FFEE11u, 0x13579BDFu}, 4294967295, 7}; }
};

// Largest relative rounding error, and the largest absolute one where numbers are subnormal.
template <typename T>
constexpr double kHalfStep = std::is_same_v<T, float>      ? 0
                             : std::is_same_v<T, BFloat16> ? 0x1p-8
                                                           : 0x1p-11;
template <typename T>
constexpr double kHalfSubnormal = std::is_same_v<T, Float16> ? 0x1p-25 : 0;

// A result and the size of the terms that roundings of the 16-bit type act on.
struct Expected {
  std::vector<double> value, rounded;
  explicit Expected(size_t size) : value(size), rounded(size) {}
  void add(size_t i, double x, double size_of_roundings) {
    value[i] += x;
    rounded[i] += size_of_roundings;
  }
};

struct AttentionOracle {
  Expected out, lse, dqkv;
  double largest_score = 0;

  AttentionOracle(const AttentionCase& c, const std::vector<float>& qkv, const std::vector<float>& dout)
      : out(dout.size()), lse(static_cast<size_t>(c.batch * c.heads * c.length)), dqkv(qkv.size()) {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t i = 0; i < c.length; ++i) {
          add_query(c, qkv, dout, b, h, i);
        }
      }
    }
  }

 private:
  static double factor(const Dropout& d, int64_t sample, int64_t head, int64_t query, int64_t key) {
    if (d.probability == 0) {
      return 1;
    }
    const PhiloxBlock words =
        philox_4x32_10({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                        static_cast<uint32_t>(d.first_head + head), static_cast<uint32_t>(d.first_sample + sample)},
                       {d.key[0], d.key[1]});
    return words[static_cast<size_t>(key % 4)] >= d.probability * 0x1p32 ? 1 / (1 - d.probability) : 0;
  }

  void add_query(const AttentionCase& c, const std::vector<float>& qkv, const std::vector<float>& dout, int64_t b,
                 int64_t h, int64_t i) {
    const int64_t kv_head = h / (c.heads / c.kv_heads);
    const auto index = [&](int64_t t, int64_t head) {
      return static_cast<size_t>((b * c.length + t) * c.row() + head * c.dim);
    };
    const auto q = index(i, h);
    const auto k = [&](int64_t j) { return index(j, c.heads + kv_head); };
    const auto v = [&](int64_t j) { return index(j, c.heads + c.kv_heads + kv_head); };
    const auto o = static_cast<size_t>(((b * c.length + i) * c.heads + h) * c.dim);
    const auto dim = static_cast<size_t>(c.dim);
    const auto product = [&](const auto& x, size_t x_at, const auto& y, size_t y_at) {
      double sum = 0;
      for (size_t d = 0; d < dim; ++d) {
        sum += static_cast<double>(x[x_at + d]) * static_cast<double>(y[y_at + d]);
      }
      return sum;
    };

    std::vector<double> p(static_cast<size_t>(i + 1)), f(p.size());
    double largest = -INFINITY;
    for (int64_t j = 0; j <= i; ++j) {
      p[static_cast<size_t>(j)] = c.scale() * product(qkv, q, qkv, k(j));
      f[static_cast<size_t>(j)] = factor(c.mask(), b, h, i, j);
      largest = std::max(largest, p[static_cast<size_t>(j)]);
      largest_score = std::max(largest_score, std::abs(p[static_cast<size_t>(j)]));
    }
    double sum = 0;
    for (double& x : p) {
      x = std::exp(x - largest);
      sum += x;
    }
    lse.value[static_cast<size_t>((b * c.heads + h) * c.length + i)] = largest + std::log(sum);
    for (int64_t j = 0; j <= i; ++j) {
      const double weight = p[static_cast<size_t>(j)] /= sum;
      for (size_t d = 0; d < dim; ++d) {
        const double x = weight * f[static_cast<size_t>(j)] * static_cast<double>(qkv[v(j) + d]);
        out.add(o + d, x, std::abs(x));
      }
    }
    const double delta = product(dout, o, out.value, o);
    double delta_rounded = 0;  // `out` is read rounded, and was made of rounded probabilities
    for (size_t d = 0; d < dim; ++d) {
      delta_rounded += std::abs(static_cast<double>(dout[o + d])) * (out.rounded[o + d] + std::abs(out.value[o + d]));
    }
    for (int64_t j = 0; j <= i; ++j) {
      const auto at = static_cast<size_t>(j);
      const double slope = c.scale() * p[at] * (f[at] * product(dout, o, qkv, v(j)) - delta);
      const double slope_rounded = std::abs(slope) + c.scale() * p[at] * delta_rounded;
      for (size_t d = 0; d < dim; ++d) {
        const auto key = static_cast<double>(qkv[k(j) + d]);
        const auto query = static_cast<double>(qkv[q + d]);
        const double gradient = p[at] * f[at] * static_cast<double>(dout[o + d]);
        dqkv.add(q + d, slope * key, slope_rounded * std::abs(key));
        dqkv.add(k(j) + d, slope * query, slope_rounded * std::abs(query));
        dqkv.add(v(j) + d, gradient, std::abs(gradient));
      }
    }
  }
};

// fp32's own errors are 1e-5 of the largest value, more where scores of hundreds have coarser steps; on top come the
// roundings of T.
template <typename T>
void expect_rounded(const std::vector<float>& got, const Expected& want, double largest_score,
                    const std::string& what) {
  double largest = 1;
  for (const double x : want.value) {
    largest = std::max(largest, std::abs(x));
  }
  ASSERT_EQ(got.size(), want.value.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = 1e-5 * std::max(1.0, largest_score / 10) * largest +
                         kHalfStep<T> * 1.02 * (want.rounded[i] + std::abs(want.value[i])) + kHalfSubnormal<T> * 4096;
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - want.value[i]), bound)
        << what << " element " << i << ": " << got[i] << ", expected " << want.value[i];
  }
}

}  // namespace ashlar::kernels
