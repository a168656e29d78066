// Attention of a GPU against a naive oracle in double. fp32 to 1e-5; 16-bit results to the roundings that the algorithm
// makes and no more: of probabilities and of score gradients before a product, of `out` before delta, of each result.
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/dtype.h"
#include "runtime/base/rng.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

struct Case {
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
struct Rounding;
template <>
struct Rounding<float> {
  static constexpr double relative = 0, subnormal = 0;
  static float round(float x) { return x; }
  static float load(float x) { return x; }
};
template <>
struct Rounding<BFloat16> {
  static constexpr double relative = 0x1p-8, subnormal = 0;
  static BFloat16 round(float x) { return to_bf16(x); }
  static float load(BFloat16 x) { return to_float(x); }
};
template <>
struct Rounding<Float16> {
  static constexpr double relative = 0x1p-11, subnormal = 0x1p-25;
  static Float16 round(float x) { return to_f16(x); }
  static float load(Float16 x) { return to_float(x); }
};

template <typename T>
Element element_of() {
  return sizeof(T) == 4 ? Element::kF32 : std::is_same_v<T, BFloat16> ? Element::kBf16 : Element::kF16;
}

template <typename T>
std::vector<T> random_elements(int64_t n, uint64_t stream, double size = 1) {
  std::vector<T> values;
  for (const float x : random_values<float>(n, stream, size)) {
    values.push_back(Rounding<T>::round(x));
  }
  return values;
}

template <typename T>
std::vector<float> as_float(const std::vector<T>& values) {
  std::vector<float> floats;
  for (const T x : values) {
    floats.push_back(Rounding<T>::load(x));
  }
  return floats;
}

// A result and the size of the terms that roundings of the 16-bit type act on.
struct Expected {
  std::vector<double> value, rounded;
  explicit Expected(size_t size) : value(size), rounded(size) {}
  void add(size_t i, double x, double size_of_roundings) {
    value[i] += x;
    rounded[i] += size_of_roundings;
  }
};

struct Oracle {
  Expected out, lse, dqkv;
  double largest_score = 0;

  Oracle(const Case& c, const std::vector<float>& qkv, const std::vector<float>& dout)
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

  void add_query(const Case& c, const std::vector<float>& qkv, const std::vector<float>& dout, int64_t b, int64_t h,
                 int64_t i) {
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
  using R = Rounding<T>;
  double largest = 1;
  for (const double x : want.value) {
    largest = std::max(largest, std::abs(x));
  }
  ASSERT_EQ(got.size(), want.value.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = 1e-5 * std::max(1.0, largest_score / 10) * largest +
                         R::relative * 1.02 * (want.rounded[i] + std::abs(want.value[i])) + R::subnormal * 4096;
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - want.value[i]), bound)
        << what << " element " << i << ": " << got[i] << ", expected " << want.value[i];
  }
}

template <typename T>
cuda::AttentionCall call_of(const Case& c, const T* qkv) {
  cuda::AttentionCall call;
  call.element = element_of<T>();
  call.batch = c.batch;
  call.length = c.length;
  call.num_heads = c.heads;
  call.num_kv_heads = c.kv_heads;
  call.head_dim = c.dim;
  call.q = qkv;
  call.k = qkv + c.heads * c.dim;
  call.v = qkv + (c.heads + c.kv_heads) * c.dim;
  call.q_row = call.kv_row = c.row();
  call.scale = c.scale();
  call.dropout = c.mask();
  return call;
}

template <typename T>
void compare_with_oracle(const Case& c) {
  auto qkv = random_elements<T>(c.batch * c.length * c.row(), 1, c.size);
  const auto dout = random_elements<T>(c.batch * c.length * c.heads * c.dim, 2);
  const Oracle want(c, as_float(qkv), as_float(dout));
  const std::string what =
      fmt::format("element {} B {} T {} H {}/{} D {} dropout {} shift {}", static_cast<int>(element_of<T>()), c.batch,
                  c.length, c.heads, c.kv_heads, c.dim, c.dropout, c.shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_qkv(qkv, c.shift), device_dout(dout, c.shift);
    const OnDevice<T> device_out(dout.size(), c.shift);
    const T unwritten = Rounding<T>::round(c.gap == 0 ? NAN : 0);  // a gap stays 0, as in the oracle
    const OnDevice<T> device_dqkv(std::vector<T>(qkv.size(), unwritten), c.shift);
    const OnDevice<float> lse(want.lse.value.size()), delta(lse.values().size());
    const cuda::AttentionCall call = call_of(c, device_qkv.get());
    cuda::attention_forward(device_out.get(), lse.get(), call, nullptr);
    T* dqkv = device_dqkv.get();
    cuda::attention_backward(dqkv, dqkv + c.heads * c.dim, dqkv + (c.heads + c.kv_heads) * c.dim, device_dout.get(),
                             device_out.get(), lse.get(), call, delta.get(), nullptr);
    return std::array{as_float(device_out.values()), lse.values(), as_float(device_dqkv.values())};
  });
  expect_rounded<T>(outputs[0], want.out, want.largest_score, what + " out");
  expect_rounded<float>(outputs[1], want.lse, want.largest_score, what + " lse");
  expect_rounded<T>(outputs[2], want.dqkv, want.largest_score, what + " dqkv");
}

TEST(CudaAttention, Bf16EqualsTheOracle) {
  for (const Case& c : {Case{2, 1, 2, 2, 64}, Case{1, 31, 3, 3, 32}, Case{2, 33, 1, 1, 64}, Case{1, 64, 1, 1, 80},
                        Case{1, 100, 2, 2, 64}, Case{1, 129, 1, 1, 128}, Case{1, 129, 1, 1, 64}, Case{1, 260, 1, 1, 64},
                        Case{1, 64, 1, 1, 8}, Case{1, 31, 1, 1, 128}}) {
    compare_with_oracle<BFloat16>(c);
  }
}

TEST(CudaAttention, Bf16WithDropoutEqualsTheOracle) {
  for (const Case& c : {Case{2, 100, 2, 2, 64, 0.1}, Case{2, 129, 1, 1, 128, 0.1}, Case{1, 33, 3, 3, 32, 0.5},
                        Case{1, 1, 1, 1, 80, 0.1}}) {
    compare_with_oracle<BFloat16>(c);
  }
}

TEST(CudaAttention, Bf16SharesKeysAmongHeads) {
  for (const Case& c : {Case{2, 33, 6, 2, 64}, Case{1, 129, 3, 1, 64, 0.1}, Case{1, 100, 2, 1, 128, 0.1}}) {
    compare_with_oracle<BFloat16>(c);
  }
}

TEST(CudaAttention, F16EqualsTheOracle) {
  for (const Case& c : {Case{1, 31, 2, 2, 64}, Case{1, 129, 1, 1, 64}, Case{1, 100, 2, 1, 80, 0.1},
                        Case{1, 129, 1, 1, 128}, Case{1, 64, 1, 1, 64, 0.1}}) {
    compare_with_oracle<Float16>(c);
  }
}

TEST(CudaAttention, F32EqualsTheOracle) {
  for (const Case& c :
       {Case{2, 1, 2, 2, 64}, Case{2, 31, 2, 2, 32}, Case{1, 33, 3, 3, 64}, Case{1, 64, 1, 1, 80},
        Case{1, 100, 2, 2, 32, 0.1}, Case{1, 129, 1, 1, 32}, Case{1, 33, 1, 1, 128}, Case{1, 33, 4, 2, 80, 0.1},
        Case{2, 35, 2, 2, 7}, Case{1, 34, 1, 1, 256}, Case{1, 33, 1, 1, 200, 0.3}}) {
    compare_with_oracle<float>(c);
  }
}

// Heads wider than the tensor cores' tiles, rows that 16-byte accesses cannot follow.
TEST(CudaAttention, TakesEveryHeadSizeAndAlignmentIn16Bits) {
  compare_with_oracle<BFloat16>({1, 34, 2, 1, 136, 0.1});
  compare_with_oracle<BFloat16>({1, 33, 1, 1, 12});
  compare_with_oracle<BFloat16>({1, 33, 1, 1, 64, 0, 1, 1});
  compare_with_oracle<BFloat16>({1, 33, 1, 1, 64, 0, 1, 0, 4});
  compare_with_oracle<Float16>({1, 40, 1, 1, 256});
  compare_with_oracle<Float16>({1, 33, 2, 2, 33});
}

// Tensor ranks hold some of the heads each. Here they read and write slices of one qkv, so rows are further apart than
// the heads of a call are long.
template <typename T>
void compare_halves_with_whole(const Case& whole) {
  Case half = whole;
  half.heads = whole.heads / 2;
  half.kv_heads = whole.kv_heads / 2;
  const int64_t tokens = whole.batch * whole.length;
  const auto qkv = random_elements<T>(tokens * whole.row(), 1);
  const auto dout = random_elements<T>(tokens * whole.heads * whole.dim, 2);
  const auto heads_of = [&](const std::vector<T>& from, int64_t first) {
    std::vector<T> to;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto begin = from.begin() + (t * whole.heads + first) * whole.dim;
      to.insert(to.end(), begin, begin + half.heads * whole.dim);
    }
    return to;
  };
  const OnDevice<T> device_qkv(qkv), whole_dqkv(qkv.size()), halves_dqkv(qkv.size());
  const OnDevice<float> lse(static_cast<size_t>(tokens * whole.heads)),
      delta(static_cast<size_t>(tokens * whole.heads));
  const auto run = [&](const Case& c, int64_t first, const OnDevice<T>& dqkv) {
    const OnDevice<T> out(static_cast<size_t>(tokens * c.heads * c.dim));
    const OnDevice<T> device_dout(c.heads == whole.heads ? dout : heads_of(dout, first));
    const int64_t k = (whole.heads + first / (whole.heads / whole.kv_heads)) * c.dim;
    const int64_t v = k + whole.kv_heads * c.dim;
    cuda::AttentionCall call = call_of(c, device_qkv.get());
    call.q = device_qkv.get() + first * c.dim;
    call.k = device_qkv.get() + k;
    call.v = device_qkv.get() + v;
    call.q_row = call.kv_row = whole.row();
    call.dropout.first_head += first;
    cuda::attention_forward(out.get(), lse.get(), call, nullptr);
    cuda::attention_backward(dqkv.get() + first * c.dim, dqkv.get() + k, dqkv.get() + v, device_dout.get(), out.get(),
                             lse.get(), call, delta.get(), nullptr);
    return out.values();
  };
  const std::vector<T> out = run(whole, 0, whole_dqkv);
  for (const int64_t first : {int64_t{0}, half.heads}) {
    EXPECT_TRUE(same_bits(run(half, first, halves_dqkv), heads_of(out, first))) << "heads from " << first;
  }
  EXPECT_TRUE(same_bits(whole_dqkv.values(), halves_dqkv.values()));
  for (const emu::Report& report : emu::take_reports()) {
    ADD_FAILURE() << emu::describe(report);
  }
}

TEST(CudaAttention, GivesAHeadTheSameBitsOnEveryGrid) {
  compare_halves_with_whole<BFloat16>({2, 70, 4, 2, 64, 0.2});
  compare_halves_with_whole<float>({1, 40, 4, 4, 16, 0.2});
}

// Scores of some hundreds: exp overflows unless the largest is taken off first, and most probabilities vanish.
TEST(CudaAttention, TakesLargeScores) {
  compare_with_oracle<Float16>({1, 150, 1, 1, 64, 0, 8});
  compare_with_oracle<float>({1, 70, 1, 1, 16, 0, 8});
}

}  // namespace
}  // namespace ashlar::kernels
