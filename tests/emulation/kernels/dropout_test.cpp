#include "kernels/cuda/dropout.h"

#include "kernels/cpu/dropout.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

constexpr Dropout kDropout{.probability = 0.3, .key = {0x1234ABCDu, 0x9876FEDCu}, .first_sample = 4294967295};
constexpr int64_t kFirst = 3;  // row

template <typename T>
void compare(int64_t rows, int64_t length, int64_t columns, bool has_bias, bool has_residual, size_t shift) {
  const auto x = random_elements<T>(rows * columns, 1), residual = random_elements<T>(rows * columns, 2);
  const auto bias = random_elements<T>(columns, 3);
  const auto x64 = as_double(x), residual64 = as_double(residual), bias64 = as_double(bias);
  std::vector<double> out(x.size());
  cpu::dropout_forward(out.data(), x64.data(), has_bias ? bias64.data() : nullptr,
                       has_residual ? residual64.data() : nullptr, rows, columns, kDropout, {kFirst, length});
  const std::string what =
      fmt::format("{} [{},{}] of samples of {} bias {} residual {} shift {}", dtype_name(DTypeOf<T>::value), rows,
                  columns, length, has_bias, has_residual, shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_x(x, shift), device_residual(residual), device_bias(bias);
    cuda::dropout_forward(element_of<T>(), device_x.get(), device_x.get(), has_bias ? device_bias.get() : nullptr,
                          has_residual ? device_residual.get() : nullptr, rows, columns, kDropout, {kFirst, length},
                          nullptr);
    return std::array{device_x.values()};
  });
  expect_rounded(outputs[0], out, 2e-6, what);
  if (!has_residual) {  // the mask to the bit
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(cpu::widen(outputs[0][i]) == 0, out[i] == 0) << what << " element " << i;
    }
  }
}

TEST(CudaDropout, EqualsTheCpu) {
  for (const int64_t columns : {1, 7, 31, 128, 129, 260, 264}) {
    for (const bool has_bias : {false, true}) {
      for (const bool has_residual : {false, true}) {
        for_all_elements([&](auto zero) {
          compare<decltype(zero)>(10, 4, columns, has_bias, has_residual, columns == 264 && has_bias ? 1 : 0);
        });
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
