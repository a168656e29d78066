#include "kernels/cuda/optimizer.h"

#include "kernels/cpu/optimizer.h"
#include "kernels/update_scalars.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

std::vector<double> scalars_of(const AdamWArgs& args) {
  std::vector<double> scalars(kNumUpdateScalars);
  set_host_scalars(
      scalars.data(),
      {.rate = args.rate, .beta1 = args.beta1, .beta2 = args.beta2, .epsilon = args.epsilon, .step = args.step});
  scalars[kFactor] = args.grad_scale;
  return scalars;
}

constexpr BFloat16* kNoCopy = nullptr;
constexpr int64_t kSizes[] = {1, 31, 33, 1024, 1025};

TEST(CudaAdamW, HasTheBitsOfTheCpu) {
  for (const int64_t n : kSizes) {
    for (const size_t shift : {0, 1}) {
      const auto param = random_values<float>(n, 1);
      const auto first = random_values<float>(n, 2, 0.1);
      auto second = random_values<float>(n, 3, 0.1);
      for (float& v : second) {
        v *= v;
      }
      const auto grad = random_values<float>(n, 4);
      const AdamWArgs args{3e-4, 0.9, 0.95, 1e-8, 0.1, 0.7, 3};
      auto expected_param = param, expected_first = first, expected_second = second;
      cpu::adamw_step(expected_param.data(), expected_first.data(), expected_second.data(), grad.data(), kNoCopy, n,
                      scalars_of(args).data(), args.weight_decay);
      const std::string what = fmt::format("adamw n {} shift {}", n, shift);
      const auto outputs = under_every_order(what, [&] {
        const OnDevice<float> p(param, shift), m(first, shift), v(second, shift), g(grad, shift);
        cuda::adamw_step(p.get(), m.get(), v.get(), g.get(), n, args, nullptr);
        return std::array{p.values(), m.values(), v.values()};
      });
      EXPECT_TRUE(same_bits(outputs[0], expected_param)) << what;
      EXPECT_TRUE(same_bits(outputs[1], expected_first)) << what;
      EXPECT_TRUE(same_bits(outputs[2], expected_second)) << what;
    }
  }
}

TEST(CudaSgd, HasTheBitsOfTheCpu) {
  for (const int64_t n : kSizes) {
    for (const size_t shift : {0, 1}) {
      const auto param = random_values<float>(n, 1);
      const auto grad = random_values<float>(n, 2);
      auto expected = param;
      cpu::sgd_step(expected.data(), grad.data(), kNoCopy, n, scalars_of({.rate = 0.1, .grad_scale = 0.5}).data(),
                    0.01);
      const auto outputs = under_every_order(fmt::format("sgd n {} shift {}", n, shift), [&] {
        const OnDevice<float> p(param, shift), g(grad);
        cuda::sgd_step(p.get(), g.get(), n, 0.1, 0.01, 0.5, nullptr);
        return std::array{p.values()};
      });
      EXPECT_TRUE(same_bits(outputs[0], expected)) << n;
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
