#include "kernels/cuda/layernorm.h"

#include "kernels/cpu/layernorm.h"
#include "kernels/cuda/activation.h"
#include "runtime/base/error.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

constexpr double kEpsilon = 1e-5;

struct Case {
  int64_t rows, columns;
  bool residual;
  size_t shift = 0;
  double offset = 0;
  size_t scratch_shift = 0;
};

template <typename T>
void compare_elements(const Case& c) {
  const auto x = random_elements<T>(c.rows * c.columns, 1, 1.5, c.offset);
  const auto gamma = random_elements<T>(c.columns, 2, 0.3, 1), beta = random_elements<T>(c.columns, 3);
  const auto dy = random_elements<T>(c.rows * c.columns, 4), dresidual = random_elements<T>(c.rows * c.columns, 5);
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
  const std::string what = fmt::format("{} [{},{}] residual {} shift {}", dtype_name(DTypeOf<T>::value), c.rows,
                                       c.columns, c.residual, c.shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_x(x, c.shift), device_gamma(gamma), device_beta(beta), device_dy(dy), device_y(x.size());
    const OnDevice<float> device_mean(mean.size()), device_rstd(rstd.size());
    const OnDevice<float> device_dgamma(gamma.size()), device_dbeta(gamma.size());
    const OnDevice<T> device_dx(dresidual);  // in place over the residual's gradient
    const size_t scratch_bytes = cuda::layernorm_backward_scratch_bytes(c.rows, c.columns);
    const OnDevice<float> scratch(scratch_bytes / sizeof(float), c.scratch_shift);
    const Element element = element_of<T>();
    cuda::layernorm_forward(element, device_y.get(), device_mean.get(), device_rstd.get(), device_x.get(),
                            device_gamma.get(), device_beta.get(), c.rows, c.columns, kEpsilon, nullptr);
    cuda::layernorm_backward(element, device_dx.get(), device_dgamma.get(), device_dbeta.get(), device_dy.get(),
                             c.residual ? device_dx.get() : nullptr, device_x.get(), device_gamma.get(),
                             device_mean.get(), device_rstd.get(), c.rows, c.columns, {scratch.get(), scratch_bytes},
                             nullptr);
    return std::tuple(device_y.values(), device_mean.values(), device_rstd.values(), device_dx.values(),
                      device_dgamma.values(), device_dbeta.values());
  });
  const double tolerance = c.offset == 0 ? 2e-6 : 5e-4;  // fp32 has steps of 6e-5 at 1000
  // A single column has variance 0, so rstd is 1/sqrt(eps) = 316 and multiplies the rounding of dx.
  const double dx_tolerance = c.columns == 1 ? 316 * tolerance : tolerance;
  expect_rounded(std::get<0>(outputs), y, tolerance, what + " y");
  expect_close(std::get<1>(outputs), mean, 2e-6, what + " mean");
  expect_close(std::get<2>(outputs), rstd, tolerance, what + " rstd");
  expect_rounded(std::get<3>(outputs), dx, dx_tolerance, what + " dx");
  // Sums over rows round at the size of their largest partial sum, about the root of the number of rows.
  const double sum_tolerance = c.rows > 100 ? 2e-5 : 5e-6;
  expect_close(std::get<4>(outputs), dgamma, sum_tolerance + (c.offset == 0 ? 0 : tolerance), what + " dgamma");
  expect_close(std::get<5>(outputs), dbeta, sum_tolerance, what + " dbeta");
}

void compare_with_cpu(const Case& c) {
  for_all_elements([&](auto zero) { compare_elements<decltype(zero)>(c); });
}

TEST(CudaLayerNorm, EqualsTheCpu) {
  // Shapes of rows end at 256, 512, 1024, 2048, 4096, 8192 and 12288 columns; up to 512, four rows share a block.
  for (const int64_t rows : {1, 3, 31, 33}) {
    for (const int64_t columns : {1, 31, 33, 129, 384}) {
      compare_with_cpu({rows, columns, (rows + columns) % 2 == 0});
    }
  }
  for (const int64_t columns : {256, 512, 513, 768, 1025, 2048, 2049, 4100, 8192, 8200}) {
    compare_with_cpu({2, columns, true});
  }
}

TEST(CudaLayerNorm, TakesRowsUpToItsLimitAndSaysSoBeyond) {
  compare_with_cpu({2, kMaxLayernormColumns, true});
  try {
    cuda::layernorm_backward_scratch_bytes(1, kMaxLayernormColumns + 1);
    FAIL() << "too many columns were accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("12288 (--hidden-size)"), std::string::npos) << error.what();
  }
}

TEST(CudaLayerNorm, RefusesTooLittleScratch) {
  const OnDevice<float> memory(size_t{64});
  EXPECT_THROW(cuda::layernorm_backward(Element::kF32, memory.get(), memory.get(), memory.get(), memory.get(), nullptr,
                                        memory.get(), memory.get(), memory.get(), memory.get(), 8, 8,
                                        {memory.get(), 64}, nullptr),
               Error);
}

TEST(CudaLayerNorm, TakesUnalignedRows) {
  compare_with_cpu({5, 384, true, 1});
  compare_with_cpu({2, 1032, false, 1});
  compare_elements<BFloat16>({2, 264, false, 0, 0, 1});
}

TEST(CudaLayerNorm, WalksOverMoreRowsThanItHasBlocks) {
  compare_elements<float>({513, 516, false});
  compare_elements<BFloat16>({257, 1032, false});
  compare_elements<Float16>({2051, 16, true});
}

TEST(CudaLayerNorm, KeepsItsDigitsWhenTheMeanIsLarge) {
  compare_elements<float>({5, 769, false, 0, 1000.0});
}

// One kernel in place of two: what they gave, to the bit.
template <typename T>
void compare_residual(int64_t rows, int64_t columns, bool has_bias, size_t shift) {
  const auto a = random_elements<T>(rows * columns, 1), b = random_elements<T>(rows * columns, 2);
  const auto bias = random_elements<T>(columns, 3), gamma = random_elements<T>(columns, 4, 0.3, 1),
             beta = random_elements<T>(columns, 5);
  const std::string what =
      fmt::format("{} [{},{}] bias {} shift {}", dtype_name(DTypeOf<T>::value), rows, columns, has_bias, shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_a(a, shift), device_b(b), device_bias(bias), device_gamma(gamma), device_beta(beta);
    const OnDevice<T> sum(a.size()), y(a.size()), fused_y(a.size());
    const OnDevice<float> mean(static_cast<size_t>(rows)), rstd(static_cast<size_t>(rows)),
        fused_mean(static_cast<size_t>(rows)), fused_rstd(static_cast<size_t>(rows));
    const T* bias_data = has_bias ? device_bias.get() : nullptr;
    const Element element = element_of<T>();
    cuda::add_bias_residual(element, sum.get(), device_a.get(), device_b.get(), bias_data, rows, columns, nullptr);
    cuda::layernorm_forward(element, y.get(), mean.get(), rstd.get(), sum.get(), device_gamma.get(), device_beta.get(),
                            rows, columns, kEpsilon, nullptr);
    cuda::residual_layernorm_forward(element, fused_y.get(), device_a.get(), fused_mean.get(), fused_rstd.get(),
                                     device_a.get(), device_b.get(), bias_data, device_gamma.get(), device_beta.get(),
                                     rows, columns, kEpsilon, nullptr);
    return std::tuple(device_a.values(), fused_y.values(), fused_mean.values(), fused_rstd.values(), sum.values(),
                      y.values(), mean.values(), rstd.values());
  });
  EXPECT_TRUE(same_bits(std::get<0>(outputs), std::get<4>(outputs))) << what << " sum";
  EXPECT_TRUE(same_bits(std::get<1>(outputs), std::get<5>(outputs))) << what << " y";
  EXPECT_TRUE(same_bits(std::get<2>(outputs), std::get<6>(outputs))) << what << " mean";
  EXPECT_TRUE(same_bits(std::get<3>(outputs), std::get<7>(outputs))) << what << " rstd";
}

TEST(CudaResidualLayerNorm, EqualsASumAndANorm) {
  for (const int64_t columns : {1, 31, 33, 264, 769, 1032}) {
    for (const size_t shift : {0, 1}) {
      for_all_elements([&](auto zero) { compare_residual<decltype(zero)>(5, columns, columns % 2 == 1, shift); });
    }
  }
  compare_residual<BFloat16>(1, kMaxLayernormColumns, true, 0);
}

}  // namespace
}  // namespace ashlar::kernels
