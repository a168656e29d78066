#include "kernels/cuda/accumulate.h"

#include "kernels/cpu/accumulate.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

template <typename Acc, typename X>
void compare_with_cpu(int64_t n, size_t acc_shift, size_t x_shift) {
  const auto before = random_elements<Acc>(n, 1, 3);
  const auto x = random_elements<X>(n, 2);
  const std::string what = fmt::format("{} += {} n {} shifts {} {}", dtype_name(DTypeOf<Acc>::value),
                                       dtype_name(DTypeOf<X>::value), n, acc_shift, x_shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<Acc> acc(before, acc_shift);
    const OnDevice<X> device_x(x, x_shift);
    cuda::accumulate(acc.get(), element_of<Acc>(), device_x.get(), element_of<X>(), n, nullptr);
    return std::array{acc.values()};
  });
  auto expected = before;
  cpu::accumulate(expected.data(), x.data(), n);
  EXPECT_TRUE(same_bits(outputs[0], expected)) << what;
}

TEST(CudaAccumulate, HasTheBitsOfTheCpu) {
  for (const int64_t n : {0, 1, 31, 33, 1025, 2049}) {
    for (const auto& [acc, x] : {std::pair<size_t, size_t>{0, 0}, {1, 1}, {0, 1}, {1, 0}}) {
      compare_with_cpu<float, float>(n, acc, x);
      compare_with_cpu<float, BFloat16>(n, acc, x);
      compare_with_cpu<BFloat16, float>(n, acc, x);
      compare_with_cpu<BFloat16, BFloat16>(n, acc, x);
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
