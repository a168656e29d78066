#include "kernels/cuda/layernorm.h"

#include "kernels/cpu/layernorm.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

constexpr double kEpsilon = 1e-5;

struct Case {
  int64_t rows, columns;
  bool residual;
  size_t shift = 0;
  double offset = 0;
};

void compare_with_cpu(const Case& c) {
  const auto x = random_values<float>(c.rows * c.columns, 1, 1.5, c.offset);
  const auto gamma = random_values<float>(c.columns, 2, 0.3, 1);
  const auto beta = random_values<float>(c.columns, 3);
  const auto dy = random_values<float>(c.rows * c.columns, 4);
  const auto dresidual = random_values<float>(c.rows * c.columns, 5);
  // The CPU's kernels in double: its fp32 sums over hundreds of rows round as much as those compared with it.
  const auto x64 = as_double(x), gamma64 = as_double(gamma), beta64 = as_double(beta), dy64 = as_double(dy);
  const auto dresidual64 = as_double(dresidual);
  std::vector<double> y(x.size()), dx(x.size()), dgamma(gamma.size()), dbeta(gamma.size());
  std::vector<double> mean(static_cast<size_t>(c.rows)), rstd(mean.size());
  cpu::layernorm_forward(y.data(), mean.data(), rstd.data(), x64.data(), gamma64.data(), beta64.data(), c.rows,
                         c.columns, kEpsilon);
  cpu::layernorm_backward(dx.data(), dgamma.data(), dbeta.data(), dy64.data(),
                          c.residual ? dresidual64.data() : nullptr, x64.data(), gamma64.data(), mean.data(),
                          rstd.data(), c.rows, c.columns);
  const std::string what = fmt::format("[{},{}] residual {} shift {}", c.rows, c.columns, c.residual, c.shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<float> device_x(x, c.shift), device_gamma(gamma), device_beta(beta), device_dy(dy);
    const OnDevice<float> device_y(x.size()), device_mean(mean.size()), device_rstd(rstd.size());
    const OnDevice<float> device_dgamma(gamma.size()), device_dbeta(gamma.size());
    const OnDevice<float> device_dx(dresidual);  // in place over the residual's gradient
    const size_t scratch_bytes = cuda::layernorm_backward_scratch_bytes(c.rows, c.columns);
    const OnDevice<float> scratch(scratch_bytes / sizeof(float));
    cuda::layernorm_forward(Element::kF32, device_y.get(), device_mean.get(), device_rstd.get(), device_x.get(),
                            device_gamma.get(), device_beta.get(), c.rows, c.columns, kEpsilon, nullptr);
    cuda::layernorm_backward(Element::kF32, device_dx.get(), device_dgamma.get(), device_dbeta.get(), device_dy.get(),
                             c.residual ? device_dx.get() : nullptr, device_x.get(), device_gamma.get(),
                             device_mean.get(), device_rstd.get(), c.rows, c.columns, {scratch.get(), scratch_bytes},
                             nullptr);
    return std::array{device_y.values(),  device_mean.values(),   device_rstd.values(),
                      device_dx.values(), device_dgamma.values(), device_dbeta.values()};
  });
  const double tolerance = c.offset == 0 ? 2e-6 : 5e-4;  // fp32 has steps of 6e-5 at 1000
  // A single column has variance 0, so rstd is 1/sqrt(eps) = 316 and multiplies the rounding of dx.
  const double dx_tolerance = c.columns == 1 ? 316 * tolerance : tolerance;
  expect_close(outputs[0], y, tolerance, what + " y");
  expect_close(outputs[1], mean, 2e-6, what + " mean");
  expect_close(outputs[2], rstd, tolerance, what + " rstd");
  expect_close(outputs[3], dx, dx_tolerance, what + " dx");
  // Sums over rows round at the size of their largest partial sum, about the root of the number of rows.
  const double sum_tolerance = c.rows > 100 ? 2e-5 : 5e-6;
  expect_close(outputs[4], dgamma, sum_tolerance + (c.offset == 0 ? 0 : tolerance), what + " dgamma");
  expect_close(outputs[5], dbeta, sum_tolerance, what + " dbeta");
}

TEST(CudaLayerNorm, EqualsTheCpu) {
  // Shapes of rows end at 128, 512, 1024, 2048, 4096 and 8192 columns; up to 128 and 512, four rows share a block.
  for (const int64_t rows : {1, 3, 31, 33}) {
    for (const int64_t columns : {1, 31, 33, 129, 384}) {
      for (const bool residual : {false, true}) {
        compare_with_cpu({rows, columns, residual});
      }
    }
  }
  for (const int64_t columns : {128, 512, 513, 768, 1025, 2048, 2049, 4100, 8192}) {
    compare_with_cpu({3, columns, true});
  }
}

TEST(CudaLayerNorm, TakesUnalignedRows) {
  compare_with_cpu({5, 384, true, 1});
  compare_with_cpu({2, 1028, false, 1});
}

TEST(CudaLayerNorm, WalksOverMoreRowsThanItHasBlocks) {
  compare_with_cpu({513, 516, false});
  compare_with_cpu({2051, 33, true});
}

TEST(CudaLayerNorm, KeepsItsDigitsWhenTheMeanIsLarge) {
  compare_with_cpu({5, 769, false, 0, 1000.0});
}

}  // namespace
}  // namespace ashlar::kernels
