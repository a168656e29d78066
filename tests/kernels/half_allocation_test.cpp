// What kernels over 16-bit types need besides their operands is taken once: later calls allocate nothing.
#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "tests/kernels/half_support.h"
#include "tests/support/count_allocations.h"

namespace ashlar::kernels {
namespace {

using test::num_allocations;

TYPED_TEST_SUITE(Halves, HalfTypes);

TYPED_TEST(Halves, LaterCallsAllocateNothing) {
  const Shape qkv{1, 130, 3, 2, 16}, out{1, 130, 2, 16}, lse{1, 2, 130};
  auto x = random_halves<TypeParam>(qkv.num_elements(), 1);
  auto y = x, dx = x;
  const TensorView attended = view(y).slice(0, out.num_elements()).reshaped(out);
  std::vector<TypeParam> product(130 * 130);
  std::vector<float> stats(260), scratch(260);
  with_threads(1, [&](Stream& stream) {
    const auto run = [&] {
      linear_forward(view(product, {130, 130}), view(x, {130, 96}), view(y, {130, 96}), {}, stream);
      attention_forward(attended, view(stats, lse), view(x, qkv), 0.1, Dropout{}, stream);
      attention_backward(view(dx, qkv), attended, view(x, qkv), attended, view(stats, lse), 0.1, Dropout{},
                         TensorView{reinterpret_cast<std::byte*>(scratch.data()), DType::kU8, {1040}}, stream);
    };
    run();
    const int64_t before = num_allocations;
    run();
    EXPECT_EQ(num_allocations - before, 0);
  });
}

}  // namespace
}  // namespace ashlar::kernels
