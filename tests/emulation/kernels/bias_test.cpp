#include "kernels/cuda/bias.h"

#include "kernels/cpu/matmul.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

template <typename T>
void compare_with_cpu(int64_t rows, int64_t columns, bool add, size_t shift = 0) {
  const auto dy = random_elements<T>(rows * columns, 1);
  const auto before = random_values<float>(columns, 2);
  const auto dy64 = as_double(dy);
  auto db = as_double(before);
  cpu::bias_backward(db.data(), dy64.data(), rows, columns, add);
  const std::string what =
      fmt::format("{} [{},{}] add {} shift {}", dtype_name(DTypeOf<T>::value), rows, columns, add, shift);
  const auto outputs = under_every_order(what, [&] {
    const OnDevice<T> device_dy(dy, shift);
    const OnDevice<float> device_db(before);
    const size_t scratch_bytes = cuda::bias_backward_scratch_bytes(rows, columns);
    const OnDevice<float> scratch(scratch_bytes / sizeof(float));
    cuda::bias_backward(element_of<T>(), device_db.get(), device_dy.get(), rows, columns, add,
                        {scratch.get(), scratch_bytes}, nullptr);
    return std::array{device_db.values()};
  });
  expect_close(outputs[0], db, 5e-6, what);
}

TEST(CudaBiasBackward, EqualsTheCpu) {
  // A block takes 256 columns, and rows 8 at a time; from 64 rows on there are several blocks for each column.
  for (const int64_t rows : {0, 1, 7, 31, 33, 64, 200}) {
    for (const int64_t columns : {1, 31, 33, 256, 257, 264}) {
      for_all_elements([&](auto zero) { compare_with_cpu<decltype(zero)>(rows, columns, (rows + columns) % 2 == 0); });
    }
  }
  for_all_elements([](auto zero) { compare_with_cpu<decltype(zero)>(70, 128, true, 1); });
}

// Which warp adds which row must not depend on how rows are read.
TEST(CudaBiasBackward, UnalignedRowsGiveTheSameBits) {
  const auto dy = random_elements<BFloat16>(100 * 264, 1);
  const auto run = [&](size_t shift) {
    const OnDevice<BFloat16> device_dy(dy, shift);
    const OnDevice<float> db(size_t{264});
    const size_t scratch_bytes = cuda::bias_backward_scratch_bytes(100, 264);
    const OnDevice<float> scratch(scratch_bytes / sizeof(float));
    cuda::bias_backward(Element::kBf16, db.get(), device_dy.get(), 100, 264, false, {scratch.get(), scratch_bytes},
                        nullptr);
    return db.values();
  };
  EXPECT_TRUE(same_bits(run(0), run(1)));
}

}  // namespace
}  // namespace ashlar::kernels
