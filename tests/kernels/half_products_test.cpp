// Matrix products and attention over bf16 and fp16.
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "tests/kernels/half_support.h"

namespace ashlar::kernels {
namespace {

TYPED_TEST_SUITE(Halves, HalfTypes);

struct Sizes {
  int64_t m, n, k;
};

// Sums of k products round at the size of sqrt(k).
double slack_of(int64_t k) {
  return 1e-7 * static_cast<double>(k + 8);
}

// The last two cross the blocks that are converted at a time: 512 rows, 512 columns, 2048 deep.
TYPED_TEST(Halves, MatmulInAllTranspositions) {
  for (const Sizes& s : {Sizes{1, 1, 1}, {31, 33, 7}, {65, 33, 31}, {513, 9, 2049}, {17, 515, 129}}) {
    const auto a = random_halves<TypeParam>(s.m * s.k, 1);
    const auto b = random_halves<TypeParam>(s.k * s.n, 2);
    const auto exact_a = widened(a);
    const auto exact_b = widened(b);
    for (const int flips : {0, 1, 2, 3}) {
      const auto product = [&](auto& c, const auto& left, const auto& right, Write write, Stream& stream) {
        const bool flip_a = flips % 2 != 0, flip_b = flips / 2 != 0;
        matmul(view(c, {s.m, s.n}), view(left, flip_a ? Shape{s.k, s.m} : Shape{s.m, s.k}),
               flip_a ? Transpose::kYes : Transpose::kNo, view(right, flip_b ? Shape{s.n, s.k} : Shape{s.k, s.n}),
               flip_b ? Transpose::kYes : Transpose::kNo, write, stream);
      };
      const auto n = static_cast<size_t>(s.m * s.n);
      std::vector<TypeParam> c(n, cpu::narrow<TypeParam>(NAN));
      std::vector<float> sums(n, NAN);
      std::vector<double> exact(n);
      on_queued_stream([&](Stream& stream) {
        product(c, a, b, Write::kOverwrite, stream);
        product(sums, a, b, Write::kOverwrite, stream);
        product(sums, a, b, Write::kAdd, stream);
        product(exact, exact_a, exact_b, Write::kOverwrite, stream);
      });
      const std::string what = fmt::format("{} x {} x {}, transposed {}", s.m, s.n, s.k, flips);
      expect_rounded(c, exact, slack_of(s.k), what);
      for (double& x : exact) {
        x *= 2;
      }
      expect_rounded(sums, exact, 2 * slack_of(s.k), what + ", twice in fp32");
      with_threads(1, [&](Stream& stream) { EXPECT_THROW(product(c, a, b, Write::kAdd, stream), Error); });
    }
  }
}

template <typename T>
struct Linear {
  static constexpr int64_t kRows = 33, kOut = 515, kIn = 31;  // more columns than are converted at a time
  std::vector<T> x, w, bias, dy, pre;
  std::vector<T> y = std::vector<T>(dy.size()), act = y, dx = std::vector<T>(x.size());
  std::vector<cpu::Compute<T>> dw = std::vector<cpu::Compute<T>>(w.size());
  TensorView out(std::vector<T>& values) { return view(values, {kRows, kOut}); }
  TensorView in(std::vector<T>& values) { return view(values, {kRows, kIn}); }
  TensorView weight() { return view(w, {kOut, kIn}); }
};

template <typename T>
Linear<T> random_linear() {
  using L = Linear<T>;
  return {random_halves<T>(L::kRows * L::kIn, 1), random_halves<T>(L::kOut * L::kIn, 2), random_halves<T>(L::kOut, 3),
          random_halves<T>(L::kRows * L::kOut, 5), random_halves<T>(L::kRows * L::kIn, 6)};
}

TYPED_TEST(Halves, LinearLayers) {
  auto layer = random_linear<TypeParam>();
  Linear<double> exact{widened(layer.x), widened(layer.w), widened(layer.bias), widened(layer.dy), widened(layer.pre)};
  const auto run = [](auto& l, Stream& stream) {
    linear_forward(l.out(l.y), l.in(l.x), l.weight(), view(l.bias), stream);
    linear_backward_input(l.in(l.dx), l.out(l.dy), l.weight(), stream);
    linear_backward_weight(view(l.dw, {l.kOut, l.kIn}), l.out(l.dy), l.in(l.x), Write::kOverwrite, stream);
  };
  on_queued_stream([&](Stream& stream) { run(layer, stream), run(exact, stream); });
  expect_rounded(layer.y, exact.y, slack_of(31), "y");
  expect_rounded(layer.dx, exact.dx, slack_of(515), "dx");
  expect_rounded(layer.dw, exact.dw, slack_of(33), "dw");
}

template <typename T>
void check_fused_linears() {
  for (const bool has_bias : {false, true}) {
    auto fused = random_linear<T>();
    auto parts = fused;
    std::vector<T> fused_pre(fused.y.size());
    on_queued_stream([&](Stream& stream) {
      const ConstTensorView bias = has_bias ? ConstTensorView(view(fused.bias)) : ConstTensorView{};
      const Activation activation = has_bias ? Activation::kGeluTanh : Activation::kGeluErf;
      linear_activation_forward(fused.out(fused.act), fused.out(fused_pre), fused.in(fused.x), fused.weight(), bias,
                                activation, stream);
      linear_activation_backward_input(fused.in(fused.dx), fused.out(fused.dy), fused.weight(), fused.in(fused.pre),
                                       activation, stream);

      linear_forward(parts.out(parts.y), parts.in(parts.x), parts.weight(), bias, stream);
      activation_forward(parts.out(parts.act), parts.out(parts.y), activation, stream);
      linear_backward_input(parts.in(parts.dx), parts.out(parts.dy), parts.weight(), stream);
      activation_backward(parts.in(parts.dx), parts.in(parts.dx), parts.in(parts.pre), activation, stream);
    });
    EXPECT_TRUE(same_bits(fused_pre, parts.y));
    EXPECT_TRUE(same_bits(fused.act, parts.act));
    EXPECT_TRUE(same_bits(fused.dx, parts.dx));
  }
}
TEST(FusedLinears, HaveTheBitsOfTheirParts) {
  check_fused_linears<float>();
  check_fused_linears<BFloat16>();
  check_fused_linears<Float16>();
}

TYPED_TEST(Halves, Attention) {
  struct Case {
    int64_t batch, sequence, heads, dim;
    double dropout;
  };
  for (const Case& c :
       {Case{1, 1, 1, 1, 0}, {2, 33, 3, 17, 0}, {1, 131, 2, 64, 0.3}, {1, 257, 1, 80, 0}, {1, 129, 1, 128, 0}}) {
    const Shape qkv{c.batch, c.sequence, 3, c.heads, c.dim}, out{c.batch, c.sequence, c.heads, c.dim},
        lse{c.batch, c.heads, c.sequence};
    const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
    const Dropout dropout{.probability = c.dropout, .key = {3, 5}, .first_sample = 7, .first_head = 2};
    struct Pass {
      std::vector<double> out, lse, dqkv;
    };
    const auto values = random_halves<TypeParam>(qkv.num_elements(), 1, 0.8);
    const auto dout = random_halves<TypeParam>(out.num_elements(), 2);
    std::vector<TypeParam> y(dout.size()), dqkv(values.size());
    std::vector<float> lse_values(static_cast<size_t>(lse.num_elements())), scratch(lse_values.size());
    std::vector<double> exact_y(y.size()), exact_dqkv(values.size()), exact_lse(lse_values.size()),
        exact_scratch(scratch.size());
    const auto exact_values = widened(values);
    const auto exact_dout = widened(dout);
    const auto workspace = [](auto& memory) {
      return TensorView{reinterpret_cast<std::byte*>(memory.data()),
                        DType::kU8,
                        {static_cast<int64_t>(memory.size() * sizeof(memory[0]))}};
    };
    EXPECT_EQ(attention_backward_workspace_bytes(qkv, DTypeOf<TypeParam>::value), scratch.size() * sizeof(float));
    with_threads(2, [&](Stream& stream) {
      attention_forward(view(y, out), view(lse_values, lse), view(values, qkv), scale, dropout, stream);
      attention_forward(view(exact_y, out), view(exact_lse, lse), view(exact_values, qkv), scale, dropout, stream);
    });
    const std::string what = fmt::format("[{},{},{},{}] ", c.batch, c.sequence, c.heads, c.dim);
    expect_rounded(y, exact_y, 2e-6, what + "out");
    expect_rounded(lse_values, exact_lse, 2e-6, what + "lse");
    // Backward starts from the output as it was stored.
    exact_y = widened(y);
    with_threads(2, [&](Stream& stream) {
      attention_backward(view(dqkv, qkv), view(dout, out), view(values, qkv), view(y, out), view(lse_values, lse),
                         scale, dropout, workspace(scratch), stream);
      attention_backward(view(exact_dqkv, qkv), view(exact_dout, out), view(exact_values, qkv), view(exact_y, out),
                         view(exact_lse, lse), scale, dropout, workspace(exact_scratch), stream);
    });
    expect_rounded(dqkv, exact_dqkv, 2e-5, what + "dqkv");
  }
}

}  // namespace
}  // namespace ashlar::kernels
