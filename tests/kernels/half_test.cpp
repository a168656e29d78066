// Row and element kernels over bf16 and fp16: read as fp32, computed in fp32, rounded once.
#include "tests/kernels/half_support.h"

#include "kernels/activation.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/layernorm.h"
#include "kernels/matmul.h"

namespace ashlar::kernels {
namespace {

TYPED_TEST_SUITE(Halves, HalfTypes);

constexpr double kSlack = 3e-6;  // of fp32 arithmetic
constexpr double kEpsilon = 1e-5;
const std::vector<int64_t> kRowCounts = {1, 31, 33, 65};
const std::vector<int64_t> kColumnCounts = {1, 31, 33, 129, 384};

// One type's run of a row kernel; S is what its statistics have.
template <typename T>
struct Row {
  using S = cpu::Compute<T>;
  int64_t rows, columns;
  std::vector<T> x, b, gamma, beta;
  std::vector<T> y = std::vector<T>(x.size()), dx = y, sum = y;
  std::vector<S> mean = std::vector<S>(static_cast<size_t>(rows)), rstd = mean;
  std::vector<S> dgamma = std::vector<S>(static_cast<size_t>(columns)), dbeta = dgamma;
  TensorView matrix(std::vector<T>& values) { return view(values, {rows, columns}); }
};

template <typename T>
Row<T> random_rows(int64_t rows, int64_t columns) {
  return {rows,
          columns,
          random_halves<T>(rows * columns, 1),
          random_halves<T>(rows * columns, 2),
          random_halves<T>(columns, 3),
          random_halves<T>(columns, 4)};
}
template <typename T>
Row<double> in_double(const Row<T>& row) {
  return {row.rows, row.columns, widened(row.x), widened(row.b), widened(row.gamma), widened(row.beta)};
}

TYPED_TEST(Halves, ActivationsAndSums) {
  for (const int64_t n : {1, 31, 33, 16385}) {
    const auto both = [&](auto run, const char* what) {
      Row<TypeParam> row = random_rows<TypeParam>(1, n);
      Row<double> exact = in_double(row);
      on_queued_stream([&](Stream& stream) { run(row, stream), run(exact, stream); });
      expect_rounded(row.y, exact.y, kSlack, fmt::format("{} of {}", what, n));
    };
    for (const Activation activation : {Activation::kGeluTanh, Activation::kGeluErf}) {
      both([&](auto& row, Stream& s) { activation_forward(row.matrix(row.y), row.matrix(row.x), activation, s); },
           "activation");
      both(
          [&](auto& row, Stream& s) {
            activation_backward(row.matrix(row.y), row.matrix(row.b), row.matrix(row.x), activation, s);
          },
          "activation backward");
    }
    both(
        [&](auto& row, Stream& s) {
          add_bias_residual(row.matrix(row.y), row.matrix(row.x), row.matrix(row.b), view(row.gamma), s);
        },
        "sum with bias");
    both([&](auto& row,
             Stream& s) { add_bias_residual(row.matrix(row.y), row.matrix(row.x), row.matrix(row.b), {}, s); },
         "sum");
  }
}

TYPED_TEST(Halves, LayerNorm) {
  for (const int64_t rows : kRowCounts) {
    for (const int64_t columns : kColumnCounts) {
      for (const bool residual : {false, true}) {
        Row<TypeParam> row = random_rows<TypeParam>(rows, columns);
        Row<double> exact = in_double(row);
        const auto run = [&](auto& r, Stream& s) {
          layernorm_forward(r.matrix(r.y), view(r.mean), view(r.rstd), r.matrix(r.x), view(r.gamma), view(r.beta),
                            kEpsilon, s);
          layernorm_backward(r.matrix(r.dx), view(r.dgamma), view(r.dbeta), r.matrix(r.b),
                             residual ? ConstTensorView(r.matrix(r.x)) : ConstTensorView{}, r.matrix(r.x),
                             view(r.gamma), view(r.mean), view(r.rstd), s);
        };
        on_queued_stream([&](Stream& stream) { run(row, stream), run(exact, stream); });
        const std::string what = fmt::format("[{},{}] residual {} ", rows, columns, residual);
        expect_rounded(row.y, exact.y, kSlack, what + "y");
        // A single column has variance 0, so rstd is 1/sqrt(eps) = 316 and multiplies the rounding of dx.
        expect_rounded(row.dx, exact.dx, columns == 1 ? 316 * kSlack : kSlack, what + "dx");
        expect_rounded(row.dgamma, exact.dgamma, kSlack, what + "dgamma", 10);
        expect_rounded(row.dbeta, exact.dbeta, kSlack, what + "dbeta", 10);
      }
    }
  }
}

template <typename T>
void check_fused_norm() {
  for (const bool has_bias : {false, true}) {
    Row<T> fused = random_rows<T>(33, 129);
    Row<T> parts = fused;
    on_queued_stream([&](Stream& s) {
      const ConstTensorView bias = has_bias ? ConstTensorView(view(fused.beta)) : ConstTensorView{};
      residual_layernorm_forward(fused.matrix(fused.y), fused.matrix(fused.x), view(fused.mean), view(fused.rstd),
                                 fused.matrix(fused.x), fused.matrix(fused.b), bias, view(fused.gamma),
                                 view(fused.beta), kEpsilon, s);
      add_bias_residual(parts.matrix(parts.sum), parts.matrix(parts.x), parts.matrix(parts.b), bias, s);
      layernorm_forward(parts.matrix(parts.y), view(parts.mean), view(parts.rstd), parts.matrix(parts.sum),
                        view(parts.gamma), view(parts.beta), kEpsilon, s);
    });
    EXPECT_TRUE(same_bits(fused.x, parts.sum));  // in place of a
    EXPECT_TRUE(same_bits(fused.y, parts.y));
    EXPECT_TRUE(same_bits(fused.mean, parts.mean));
    EXPECT_TRUE(same_bits(fused.rstd, parts.rstd));
  }
}
TEST(ResidualLayerNorm, HasTheBitsOfItsParts) {
  check_fused_norm<float>();
  check_fused_norm<BFloat16>();
  check_fused_norm<Float16>();
}

TYPED_TEST(Halves, CrossEntropy) {
  for (const int64_t rows : {1, 33}) {
    for (const int64_t columns : {1, 31, 33, 260}) {
      const int64_t num_valid = std::max<int64_t>(1, columns - 2);
      std::vector<int32_t> targets(static_cast<size_t>(rows));
      std::vector<float> mask(targets.size(), 1.0f);
      for (size_t i = 0; i < targets.size(); ++i) {
        targets[i] = static_cast<int32_t>(5 + i * 7 % static_cast<size_t>(num_valid + 2));  // some of other ranks
        mask[i] = i % 5 == 3 ? 0.0f : 1.0f;
      }
      const auto run = [&](auto& row, Stream& s) {
        using S = typename std::remove_reference_t<decltype(row)>::S;
        std::vector<S> stats(static_cast<size_t>(3 * rows));
        cross_entropy_stats(view(stats, {rows, 3}), row.matrix(row.x), view(targets), 5, num_valid, s);
        cross_entropy_finish(view(row.mean), row.matrix(row.x), view(stats, {1, rows, 3}), view(targets), view(mask), 5,
                             num_valid, 0.37, true, s);
      };
      Row<TypeParam> row = random_rows<TypeParam>(rows, columns);
      Row<double> exact = in_double(row);
      with_threads(1, [&](Stream& stream) { run(row, stream), run(exact, stream); });
      const std::string what = fmt::format("[{},{}] ", rows, columns);
      expect_rounded(row.mean, exact.mean, kSlack, what + "losses");
      expect_rounded(row.x, exact.x, kSlack, what + "gradient", 0.37);
    }
  }
}

TYPED_TEST(Halves, EmbeddingAndPositions) {
  for (const int64_t columns : {1, 31, 33, 260}) {
    const int64_t batch = 3, length = 7, num_tokens = batch * length;
    std::vector<int32_t> tokens, order(static_cast<size_t>(num_tokens));
    for (int32_t i = 0; i < num_tokens; ++i) {
      tokens.push_back(9 + i * 5 % 7);
    }
    Row<TypeParam> row = random_rows<TypeParam>(num_tokens, columns);
    Row<double> exact = in_double(row);
    const auto run = [&](auto& r, Stream& s) {
      using S = typename std::remove_reference_t<decltype(r)>::S;
      const Shape table{10, columns};
      r.dgamma.assign(static_cast<size_t>(10 * columns), S(0.5));
      r.dbeta = r.dgamma;
      const ConstTensorView rows_of_x = ConstTensorView(view(r.x)).slice(0, 10 * columns).reshaped(table);
      embedding_forward(r.matrix(r.y), view(tokens), rows_of_x, 10, 5, s);
      position_forward(view(r.y, {batch, length, columns}), rows_of_x, {0, length}, s);
      embedding_backward(view(r.dgamma, table), r.matrix(r.b), view(tokens), view(order), 10, 5, s);
      position_backward(view(r.dbeta, table), view(r.b, {batch, length, columns}), {0, length}, Write::kAdd, s);
    };
    on_queued_stream([&](Stream& stream) { run(row, stream), run(exact, stream); });
    const std::string what = fmt::format("{} columns ", columns);
    expect_rounded(row.y, exact.y, 0, what + "y");
    expect_rounded(row.dgamma, exact.dgamma, kSlack, what + "token gradient");
    expect_rounded(row.dbeta, exact.dbeta, kSlack, what + "position gradient");
  }
}

TYPED_TEST(Halves, BiasGradient) {
  for (const int64_t rows : kRowCounts) {
    for (const int64_t columns : {1, 33, 257}) {
      for (const Write write : {Write::kOverwrite, Write::kAdd}) {
        Row<TypeParam> row = random_rows<TypeParam>(rows, columns);
        Row<double> exact = in_double(row);
        const auto run = [&](auto& r, Stream& s) {
          std::fill(r.dgamma.begin(), r.dgamma.end(), 0.5f);
          bias_backward(view(r.dgamma), r.matrix(r.x), write, s);
        };
        with_threads(1, [&](Stream& stream) { run(row, stream), run(exact, stream); });
        expect_rounded(row.dgamma, exact.dgamma, kSlack, fmt::format("[{},{}]", rows, columns), 10);
      }
    }
  }
}

TYPED_TEST(Halves, AreNotTakenForStatistics) {
  Row<TypeParam> row = random_rows<TypeParam>(3, 8);
  with_threads(1, [&](Stream& s) {
    EXPECT_THROW(layernorm_forward(row.matrix(row.y), view(row.gamma), view(row.rstd), row.matrix(row.x),
                                   view(row.gamma), view(row.beta), kEpsilon, s),
                 Error);
    EXPECT_THROW(bias_backward(view(row.gamma), row.matrix(row.x), Write::kOverwrite, s), Error);
    EXPECT_THROW(
        linear_backward_weight(view(row.sum, {8, 3}), view(row.x, {3, 8}), view(row.b, {3, 3}), Write::kOverwrite, s),
        Error);
  });
}

}  // namespace
}  // namespace ashlar::kernels
