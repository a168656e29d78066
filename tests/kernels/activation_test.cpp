#include "kernels/activation.h"

#include <limits>

#include "kernels/cpu/loops.h"
#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {
namespace {

const std::vector<int64_t> kSizes = {1, 31, 33, cpu::kBlock + 1};

double gelu(double x, Activation activation) {
  if (activation == Activation::kGeluErf) {
    return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  }
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x, Activation activation) {
  const double step = 1e-5;
  return (gelu(x + step, activation) - gelu(x - step, activation)) / (2 * step);
}

class GeluTest : public ::testing::TestWithParam<Activation> {};

TEST_P(GeluTest, EqualsTheFormula) {
  for (const int64_t n : kSizes) {
    const auto x = random_values<float>(n, 1, 3);
    const auto x_double = random_values<double>(n, 1, 3);
    const auto dy = random_values<float>(n, 2);
    std::vector<float> y(x.size()), dx(x.size());
    std::vector<double> y_double(x.size());
    on_queued_stream([&](Stream& stream) {
      activation_forward(view(y), view(x), GetParam(), stream);
      activation_backward(view(dx), view(dy), view(x), GetParam(), stream);
      activation_forward(view(y_double), view(x_double), GetParam(), stream);
    });
    std::vector<double> expected, expected_double, expected_slope;
    for (size_t i = 0; i < x.size(); ++i) {
      expected.push_back(gelu(static_cast<double>(x[i]), GetParam()));
      expected_double.push_back(gelu(x_double[i], GetParam()));
      expected_slope.push_back(static_cast<double>(dy[i]) * gelu_slope(static_cast<double>(x[i]), GetParam()));
    }
    expect_close(y, expected, 6e-7, "y");
    expect_close(y_double, expected_double, 1e-14, "y in fp64");
    expect_close(dx, expected_slope, 2e-6, "dx");
  }
}

TEST_P(GeluTest, BackwardIsTheDerivative) {
  auto x = random_values<double>(101, 1, 2);
  const auto dy = random_values<double>(101, 2);
  std::vector<double> y(x.size()), dx(x.size());
  with_threads(1, [&](Stream& stream) {
    activation_backward(view(dx), view(dy), view(std::as_const(x)), GetParam(), stream);
    expect_gradient(
        x, dx,
        [&] {
          activation_forward(view(y), view(std::as_const(x)), GetParam(), stream);
          return dot(y, dy);
        },
        "dx");
  });
}

TEST_P(GeluTest, FarValuesAreZeroOrTheInput) {
  const std::vector<float> x = {0.0f, 40.0f, 1e4f, 3e20f, -40.0f, -1e4f};
  const std::vector<float> ones(x.size(), 1.0f);
  std::vector<float> y(x.size()), dx(x.size());
  on_queued_stream([&](Stream& stream) {
    activation_forward(view(y), view(x), GetParam(), stream);
    activation_backward(view(dx), view(ones), view(x), GetParam(), stream);
  });
  const std::vector<float> expected_y = {0, 40, 1e4f, 3e20f, 0, 0};
  const std::vector<float> expected_dx = {0.5f, 1, 1, 1, 0, 0};
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_FLOAT_EQ(y[i], expected_y[i]) << "x = " << x[i];
    EXPECT_FLOAT_EQ(dx[i], expected_dx[i]) << "x = " << x[i];
  }
}

TEST_P(GeluTest, NanStaysNan) {
  const std::vector<float> x(40, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> ones(x.size(), 1.0f);
  std::vector<float> y(x.size()), dx(x.size());
  on_queued_stream([&](Stream& stream) {
    activation_forward(view(y), view(x), GetParam(), stream);
    activation_backward(view(dx), view(ones), view(x), GetParam(), stream);
  });
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(std::isnan(y[i]) && std::isnan(dx[i]));
  }
}

TEST_P(GeluTest, GradientMayBeWrittenInPlaceOnAnyNumberOfThreads) {
  const auto x = random_values<float>(3 * cpu::kBlock + 7, 1, 2);
  const auto dy = random_values<float>(3 * cpu::kBlock + 7, 2);
  std::vector<float> apart(x.size());
  std::vector<float> in_place = dy;
  with_threads(1, [&](Stream& stream) { activation_backward(view(apart), view(dy), view(x), GetParam(), stream); });
  with_threads(3, [&](Stream& stream) {
    activation_backward(view(in_place), view(std::as_const(in_place)), view(x), GetParam(), stream);
  });
  EXPECT_TRUE(same_bits(apart, in_place));
}

INSTANTIATE_TEST_SUITE_P(BothForms, GeluTest, ::testing::Values(Activation::kGeluTanh, Activation::kGeluErf));

TEST(Gelu, Fp32ErfIsWithinAMillionthOfTheTrueOne) {
  std::vector<float> x;
  for (int i = -60000; i <= 60000; ++i) {
    x.push_back(static_cast<float>(i) * 1e-4f + 3e-5f);
  }
  std::vector<float> y(x.size());
  on_queued_stream([&](Stream& stream) { activation_forward(view(y), view(x), Activation::kGeluErf, stream); });
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = static_cast<double>(x[i]);
    const double erf = 2 * static_cast<double>(y[i]) / at - 1;  // from y = x (1 + erf(x / sqrt 2)) / 2
    ASSERT_LT(std::abs(erf - std::erf(at / std::sqrt(2.0))), 1e-6) << "x = " << at;
  }
}

TEST(AddBiasResidual, AddsWithAndWithoutBiasAndInPlace) {
  for (const int64_t columns : {1, 31, 33, 700}) {
    const int64_t rows = 29;
    const auto a = random_values<float>(rows * columns, 1);
    const auto b = random_values<float>(rows * columns, 2);
    const auto bias = random_values<float>(columns, 3);
    std::vector<float> with_bias(a.size()), without(a.size()), over_a = a, over_b = b;
    with_threads(3, [&](Stream& stream) {
      add_bias_residual(view(with_bias, {rows, columns}), view(a, {rows, columns}), view(b), view(bias), stream);
      add_bias_residual(view(without), view(a), view(b), {}, stream);
      add_bias_residual(view(over_a, {rows, columns}), view(std::as_const(over_a), {rows, columns}), view(b),
                        view(bias), stream);
      add_bias_residual(view(over_b, {rows, columns}), view(a, {rows, columns}), view(std::as_const(over_b)),
                        view(bias), stream);
    });
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(with_bias[i], a[i] + b[i] + bias[i % static_cast<size_t>(columns)]);
      ASSERT_EQ(without[i], a[i] + b[i]);
    }
    EXPECT_TRUE(same_bits(over_a, with_bias));
    EXPECT_TRUE(same_bits(over_b, with_bias));
  }
}

}  // namespace
}  // namespace ashlar::kernels
