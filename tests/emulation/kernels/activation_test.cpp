#include "kernels/cuda/activation.h"

#include "kernels/cpu/activation.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

// A block of threads covers 1024 elements.
constexpr int64_t kSizes[] = {1, 31, 33, 1024, 1025};

TEST(CudaActivation, EqualsTheCpu) {
  for (const Activation activation : {Activation::kGeluTanh, Activation::kGeluErf}) {
    for (const int64_t n : kSizes) {
      for (const size_t shift : {0, 1}) {
        auto x = random_values<float>(n, 1, 3);
        x[0] = -30;  // far out, where careless forms overflow or give NaN
        x.back() = 30;
        if (n > 2) {
          x[1] = -1e20f;
          x[2] = 1e20f;
        }
        const auto dy = random_values<float>(n, 2);
        std::vector<float> y(x.size()), dx(x.size());
        cpu::activation_forward(y.data(), x.data(), n, activation);
        cpu::activation_backward(dx.data(), dy.data(), x.data(), n, activation);
        const std::string what = fmt::format("activation {} n {} shift {}", static_cast<int>(activation), n, shift);
        const auto outputs = under_every_order(what, [&] {
          const OnDevice<float> device_x(x, shift), device_dy(dy, shift), device_y(x.size(), shift);
          cuda::activation_forward(Element::kF32, device_y.get(), device_x.get(), n, activation, nullptr);
          cuda::activation_backward(Element::kF32, device_dy.get(), device_dy.get(), device_x.get(), n, activation,
                                    nullptr);
          return std::array{device_y.values(), device_dy.values()};
        });
        expect_close(outputs[0], as_double(y), 1e-5, what + " y");
        expect_close(outputs[1], as_double(dx), 1e-5, what + " dx");
      }
    }
  }
}

TEST(CudaAdd, HasTheBitsOfTheCpu) {
  for (const int64_t n : kSizes) {
    for (const size_t shift : {0, 1}) {
      const auto x = random_values<float>(n, 1);
      const auto before = random_values<float>(n, 2);
      auto y = before;
      cpu::add(y.data(), x.data(), n);
      const auto outputs = under_every_order(fmt::format("add n {}", n), [&] {
        const OnDevice<float> device_x(x), device_y(before, shift);
        cuda::add(Element::kF32, device_y.get(), device_x.get(), n, nullptr);
        return std::array{device_y.values()};
      });
      EXPECT_TRUE(same_bits(outputs[0], y)) << n;
    }
  }
}

TEST(CudaAddBiasResidual, HasTheBitsOfTheCpu) {
  for (const int64_t rows : {1, 7, 9}) {
    for (const int64_t columns : {1, 31, 33, 128, 129, 260}) {
      for (const bool has_bias : {false, true}) {
        const auto a = random_values<float>(rows * columns, 1);
        const auto b = random_values<float>(rows * columns, 2);
        const auto bias = random_values<float>(columns, 3);
        std::vector<float> out(a.size());
        cpu::add_bias_residual(out.data(), a.data(), b.data(), has_bias ? bias.data() : nullptr, rows, columns);
        const std::string what = fmt::format("[{},{}] bias {}", rows, columns, has_bias);
        const auto outputs = under_every_order(what, [&] {
          const OnDevice<float> device_a(a), device_b(b), device_bias(bias);
          cuda::add_bias_residual(Element::kF32, device_a.get(), device_a.get(), device_b.get(),
                                  has_bias ? device_bias.get() : nullptr, rows, columns, nullptr);
          return std::array{device_a.values()};
        });
        EXPECT_TRUE(same_bits(outputs[0], out)) << what;
      }
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
