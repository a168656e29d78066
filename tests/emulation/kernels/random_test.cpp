#include "kernels/cuda/random.h"

#include "kernels/cpu/random.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

PhiloxKey key_of(const PhiloxStream& random) {
  return {{random.key()[0], random.key()[1]}, {random.high()[0], random.high()[1]}};
}

// Numbers begin at any place of a block of four, in words and beyond 2^32 of them.
constexpr uint64_t kFirst[] = {0, 1, 2, 3, 1000, (uint64_t{1} << 34) - 5};

TEST(CudaFillUniform, HasTheBitsOfTheCpu) {
  const PhiloxStream random(42, RngPurpose::kTest, 77);
  for (const uint64_t first : kFirst) {
    for (const int64_t n : {1, 2, 31, 33, 1024, 1025}) {
      std::vector<float> expected(static_cast<size_t>(n));
      cpu::fill_uniform(expected.data(), random, first, n);
      const std::string what = fmt::format("uniform first {} n {}", first, n);
      const auto outputs = under_every_order(what, [&] {
        const OnDevice<float> out(expected.size(), first % 2);
        cuda::fill_uniform(out.get(), key_of(random), first, n, nullptr);
        return std::array{out.values()};
      });
      EXPECT_TRUE(same_bits(outputs[0], expected)) << what;
    }
  }
}

TEST(CudaFillNormal, EqualsTheCpu) {
  const PhiloxStream random(42, RngPurpose::kTest, 78);
  for (const uint64_t first : kFirst) {
    for (const int64_t n : {1, 2, 31, 33, 1025, 20000}) {
      std::vector<float> expected(static_cast<size_t>(n));
      cpu::fill_normal(expected.data(), random, first, 0.5, 2, n);
      const std::string what = fmt::format("normal first {} n {}", first, n);
      const auto outputs = under_every_order(what, [&] {
        const OnDevice<float> out(expected.size());
        cuda::fill_normal(out.get(), key_of(random), first, 0.5, 2, n, nullptr);
        return std::array{out.values()};
      });
      expect_close(outputs[0], as_double(expected), 2e-6, what);
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
