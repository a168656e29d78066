#include "kernels/layernorm.h"

#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {
namespace {

constexpr double kEpsilon = 1e-5;

template <typename T>
struct Norm {
  Norm(int64_t num_rows, int64_t num_columns, double offset = 0)
      : rows(num_rows),
        columns(num_columns),
        x(random_values<T>(rows * columns, 1, 1.5, offset)),
        gamma(random_values<T>(columns, 2, 0.3, 1)),
        beta(random_values<T>(columns, 3)),
        dy(random_values<T>(rows * columns, 4)),
        dresidual(random_values<T>(rows * columns, 5)),
        y(x.size()),
        mean(static_cast<size_t>(rows)),
        rstd(static_cast<size_t>(rows)),
        dx(x.size()),
        dgamma(gamma.size()),
        dbeta(gamma.size()) {}

  void forward(Stream& stream) {
    layernorm_forward(view(y, {rows, columns}), view(mean), view(rstd), view(x, {rows, columns}), view(gamma),
                      view(beta), kEpsilon, stream);
  }
  void backward(ConstTensorView residual, Stream& stream) {
    layernorm_backward(view(dx, {rows, columns}), view(dgamma), view(dbeta), view(dy, {rows, columns}), residual,
                       view(x, {rows, columns}), view(gamma), view(mean), view(rstd), stream);
  }

  int64_t rows;
  int64_t columns;
  std::vector<T> x, gamma, beta, dy, dresidual;
  std::vector<T> y, mean, rstd, dx, dgamma, dbeta;
};

// The formulas of the paper, element by element, in double.
template <typename T>
struct Expected {
  explicit Expected(const Norm<T>& norm, bool residual)
      : y(norm.x.size()), dx(norm.x.size()), dgamma(norm.gamma.size()), dbeta(norm.gamma.size()) {
    const auto columns = static_cast<size_t>(norm.columns);
    const auto count = static_cast<double>(columns);
    for (size_t row = 0; row < static_cast<size_t>(norm.rows); ++row) {
      const size_t at = row * columns;
      double mean = 0, variance = 0, average = 0, weighted = 0;
      for (size_t c = 0; c < columns; ++c) {
        mean += static_cast<double>(norm.x[at + c]) / count;
      }
      for (size_t c = 0; c < columns; ++c) {
        const double centered = static_cast<double>(norm.x[at + c]) - mean;
        variance += centered * centered / count;
      }
      const double rstd = 1 / std::sqrt(variance + kEpsilon);
      const auto normed = [&](size_t c) { return (static_cast<double>(norm.x[at + c]) - mean) * rstd; };
      const auto scaled = [&](size_t c) {
        return static_cast<double>(norm.dy[at + c]) * static_cast<double>(norm.gamma[c]);
      };
      for (size_t c = 0; c < columns; ++c) {
        y[at + c] = normed(c) * static_cast<double>(norm.gamma[c]) + static_cast<double>(norm.beta[c]);
        dgamma[c] += static_cast<double>(norm.dy[at + c]) * normed(c);
        dbeta[c] += static_cast<double>(norm.dy[at + c]);
        average += scaled(c) / count;
        weighted += scaled(c) * normed(c) / count;
      }
      for (size_t c = 0; c < columns; ++c) {
        dx[at + c] = (residual ? static_cast<double>(norm.dresidual[at + c]) : 0) +
                     rstd * (scaled(c) - average - normed(c) * weighted);
      }
    }
  }
  std::vector<double> y, dx, dgamma, dbeta;
};

template <typename T>
void compare_with_oracle(double tolerance) {
  // 128 columns and 64 rows are the blocks of dgamma and dbeta.
  for (const int64_t rows : {1, 31, 33, 65}) {
    for (const int64_t columns : {1, 31, 33, 129, 384}) {
      for (const bool residual : {false, true}) {
        Norm<T> norm(rows, columns);
        on_queued_stream([&](Stream& stream) {
          norm.forward(stream);
          norm.backward(residual ? view(std::as_const(norm.dresidual)) : ConstTensorView{}, stream);
        });
        const Expected<T> expected(norm, residual);
        const std::string what = fmt::format("[{},{}] residual {}", rows, columns, residual);
        // A single column has variance 0, so rstd is 1/sqrt(eps) = 316 and multiplies the rounding of dx.
        const double dx_tolerance = columns == 1 ? 316 * tolerance : tolerance;
        expect_close(norm.y, expected.y, tolerance, what + " y");
        expect_close(norm.dx, expected.dx, dx_tolerance, what + " dx");
        // Sums of up to 65 terms round at the size of their largest partial sum, about 10.
        expect_close(norm.dgamma, expected.dgamma, 5 * tolerance, what + " dgamma");
        expect_close(norm.dbeta, expected.dbeta, 5 * tolerance, what + " dbeta");
      }
    }
  }
}

TEST(LayerNorm, EqualsTheFormulaInFp32) {
  compare_with_oracle<float>(2e-6);
}
TEST(LayerNorm, EqualsTheFormulaInFp64) {
  compare_with_oracle<double>(1e-12);
}

TEST(LayerNorm, KeepsItsDigitsWhenTheMeanIsLarge) {
  Norm<float> norm(5, 769, 1000.0);
  on_queued_stream([&](Stream& stream) { norm.forward(stream); });
  // The mean is kept in fp32, whose step at 1000 is 6e-5. E[x^2] - E[x]^2 would be off by 0.1 and more.
  expect_close(norm.y, Expected<float>(norm, false).y, 2e-4, "y");
}

TEST(LayerNorm, BackwardIsTheDerivative) {
  for (const int64_t columns : {2, 31, 130}) {
    Norm<double> norm(3, columns);
    with_threads(1, [&](Stream& stream) {
      norm.forward(stream);
      norm.backward(view(std::as_const(norm.dresidual)), stream);
      // The loss sees x twice: through the norm, and through the residual path around it.
      const auto loss = [&] {
        norm.forward(stream);
        return dot(norm.y, norm.dy) + dot(norm.x, norm.dresidual);
      };
      const std::vector<double> dx = norm.dx;
      expect_gradient(norm.x, dx, loss, "dx");
      expect_gradient(norm.gamma, norm.dgamma, loss, "dgamma");
      expect_gradient(norm.beta, norm.dbeta, loss, "dbeta");
    });
  }
}

TEST(LayerNorm, GradientMayBeWrittenOverTheResidual) {
  Norm<float> apart(33, 200);
  Norm<float> in_place(33, 200);
  on_queued_stream([&](Stream& stream) {
    apart.forward(stream);
    apart.backward(view(std::as_const(apart.dresidual)), stream);
    in_place.dx = in_place.dresidual;
    in_place.forward(stream);
    in_place.backward(view(std::as_const(in_place.dx)), stream);
  });
  EXPECT_TRUE(same_bits(apart.dx, in_place.dx));
}

TEST(LayerNorm, BitsDoNotDependOnThreads) {
  Norm<float> one(150, 300);
  Norm<float> three(150, 300);
  const auto run = [](Norm<float>& norm) {
    return [&](Stream& stream) {
      norm.forward(stream);
      norm.backward({}, stream);
    };
  };
  with_threads(1, run(one));
  with_threads(3, run(three));
  EXPECT_TRUE(same_bits(one.y, three.y));
  EXPECT_TRUE(same_bits(one.dx, three.dx));
  EXPECT_TRUE(same_bits(one.dgamma, three.dgamma));
  EXPECT_TRUE(same_bits(one.dbeta, three.dbeta));
}

TEST(LayerNorm, RefusesViewsThatDoNotFit) {
  with_threads(1, [](Stream& stream) {
    Norm<float> norm(3, 8);
    norm.gamma.resize(7);
    EXPECT_THROW(norm.forward(stream), Error);
    Norm<float> other(3, 8);
    std::vector<double> wrong(3);
    EXPECT_THROW(layernorm_forward(view(other.y, {3, 8}), view(wrong), view(other.rstd), view(other.x, {3, 8}),
                                   view(other.gamma), view(other.beta), kEpsilon, stream),
                 Error);
    std::vector<int32_t> integers(24);
    EXPECT_THROW(
        layernorm_forward(view(integers, {3, 8}), view(integers, {3, 1}), view(integers, {3, 1}),
                          view(integers, {3, 8}), view(integers, {8, 1}), view(integers, {8, 1}), kEpsilon, stream),
        Error);
  });
}

}  // namespace
}  // namespace ashlar::kernels
