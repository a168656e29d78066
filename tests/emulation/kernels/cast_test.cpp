#include "kernels/cuda/cast.h"

#include <limits>

#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

// Of every size there is: large and small ones, halves between neighbours, and what is not a number.
template <typename T>
std::vector<T> some_values(int64_t n) {
  auto values = random_values<float>(n, 1, 10);
  const float infinity = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f,     -0.0f, infinity, -infinity, 1.00390625f, 1.01171875f, 65519.0f,
                           65520.0f, 3e-8f, 2.9e-8f,  1e-40f,    -3.4e38f,    1.00048828f, 6.1e-5f};
  for (size_t i = 0; i < std::size(special) && i < values.size(); ++i) {
    values[values.size() - 1 - i] = special[i];
  }
  return rounded_to<T>(values);
}

template <typename Out, typename In>
void compare_with_cpu(int64_t n, size_t shift) {
  const auto in = some_values<In>(n);
  const std::string what = fmt::format("{} from {} n {} shift {}", dtype_name(DTypeOf<Out>::value),
                                       dtype_name(DTypeOf<In>::value), n, shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<In> device_in(in, shift);
    const OnDevice<Out> out(in.size(), shift);
    cuda::cast(out.get(), element_of<Out>(), device_in.get(), element_of<In>(), n, nullptr);
    return std::array{out.values()};
  });
  EXPECT_TRUE(same_bits(outputs[0], rounded_to<Out>(as_float(in)))) << what;
}

TEST(CudaCast, HasTheBitsOfTheCpu) {
  for (const int64_t n : {1, 31, 33, 1025, 2049}) {
    for (const size_t shift : {0, 1}) {
      for_all_elements([&](auto out) {
        for_all_elements([&](auto in) { compare_with_cpu<decltype(out), decltype(in)>(n, shift); });
      });
    }
  }
}

TEST(CudaCast, KeepsNan) {
  const OnDevice<float> in(std::vector<float>(9, std::numeric_limits<float>::quiet_NaN()));
  for_all_elements([&](auto zero) {
    using T = decltype(zero);
    const OnDevice<T> out(size_t{9});
    cuda::cast(out.get(), element_of<T>(), in.get(), Element::kF32, 9, nullptr);
    for (const double value : as_double(out.values())) {
      EXPECT_TRUE(std::isnan(value));
    }
  });
}

}  // namespace
}  // namespace ashlar::kernels
