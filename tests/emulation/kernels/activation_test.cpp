#include "kernels/cuda/activation.h"

#include "kernels/cpu/activation.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

// A block of threads covers 1024 elements of 32 bits, or 2048 of 16.
constexpr int64_t kSizes[] = {1, 31, 33, 1024, 1025, 2048, 2049};

template <typename T>
void compare_activation(Activation activation, int64_t n, size_t shift) {
  auto values = random_values<float>(n, 1, 3);
  values[0] = -30;  // far out, where careless forms overflow or give NaN
  values.back() = 30;
  if (n > 2 && !std::is_same_v<T, Float16>) {
    values[1] = -1e20f;
    values[2] = 1e20f;
  }
  const auto x = rounded_to<T>(values);
  const auto dy = random_elements<T>(n, 2);
  const auto x64 = as_double(x), dy64 = as_double(dy);
  std::vector<double> y(x.size()), dx(x.size());
  cpu::activation_forward(y.data(), x64.data(), n, activation);
  cpu::activation_backward(dx.data(), dy64.data(), x64.data(), n, activation);
  const std::string what = fmt::format("activation {} {} n {} shift {}", static_cast<int>(activation),
                                       dtype_name(DTypeOf<T>::value), n, shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_x(x, shift), device_dy(dy, shift), device_y(x.size(), shift);
    cuda::activation_forward(element_of<T>(), device_y.get(), device_x.get(), n, activation, nullptr);
    cuda::activation_backward(element_of<T>(), device_dy.get(), device_dy.get(), device_x.get(), n, activation,
                              nullptr);
    return std::array{device_y.values(), device_dy.values()};
  });
  expect_rounded(outputs[0], y, 1e-6, what + " y");
  expect_rounded(outputs[1], dx, 1e-5, what + " dx");
}

TEST(CudaActivation, EqualsTheCpu) {
  for (const Activation activation : {Activation::kGeluTanh, Activation::kGeluErf}) {
    for (const int64_t n : kSizes) {
      for (const size_t shift : {0, 1}) {
        for_all_elements([&](auto zero) { compare_activation<decltype(zero)>(activation, n, shift); });
      }
    }
  }
}

template <typename T>
void compare_add_bias_residual(int64_t rows, int64_t columns, bool has_bias) {
  const auto a = random_elements<T>(rows * columns, 1), b = random_elements<T>(rows * columns, 2);
  const auto bias = random_elements<T>(columns, 3);
  const auto a32 = as_float(a), b32 = as_float(b), bias32 = as_float(bias);
  std::vector<float> out(a.size());
  cpu::add_bias_residual(out.data(), a32.data(), b32.data(), has_bias ? bias32.data() : nullptr, rows, columns);
  const std::string what = fmt::format("{} [{},{}] bias {}", dtype_name(DTypeOf<T>::value), rows, columns, has_bias);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_a(a), device_b(b), device_bias(bias);
    cuda::add_bias_residual(element_of<T>(), device_a.get(), device_a.get(), device_b.get(),
                            has_bias ? device_bias.get() : nullptr, rows, columns, nullptr);
    return std::array{device_a.values()};
  });
  EXPECT_TRUE(same_bits(outputs[0], rounded_to<T>(out))) << what;
}

TEST(CudaAddBiasResidual, HasTheBitsOfTheCpu) {
  for (const int64_t rows : {1, 7, 9}) {
    for (const int64_t columns : {1, 31, 33, 128, 129, 260, 264}) {
      for (const bool has_bias : {false, true}) {
        for_all_elements([&](auto zero) { compare_add_bias_residual<decltype(zero)>(rows, columns, has_bias); });
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
