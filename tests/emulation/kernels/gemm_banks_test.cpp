// Bank conflicts of our matrix products, which only the emulator counts.
#include <gtest/gtest.h>

#include "kernels/cuda/gemm.h"
#include "tests/emulation/emu/emulator.h"
#include "tests/emulation/kernels/support.h"

namespace ashlar::kernels {
namespace {

// Rows that ldmatrix reads at once lie in different banks.
TEST(CudaGemmBanks, SharedMemoryIsReadWithoutConflicts) {
  const OnDevice<float> a(size_t{128 * 64}), b(size_t{128 * 64}), c(size_t{128 * 128});
  for (const Element element : {Element::kBf16, Element::kF16}) {
    for (const auto& [transpose_a, transpose_b] : {std::pair{false, true}, {false, false}, {true, false}}) {
      cuda::MatmulCall call{.input = element, .output = element, .c = c.get(), .a = a.get(), .b = b.get()};
      call.m = 128;
      call.n = 128;
      call.k = 64;
      call.transpose_a = transpose_a;
      call.transpose_b = transpose_b;
      cuda::gemm(call, {}, nullptr);
      EXPECT_GT(emu::last_statistics().ldmatrix_phases, 0u);
      EXPECT_EQ(emu::last_statistics().ldmatrix_conflicts, 0u) << transpose_a << transpose_b;
    }
  }
}

}  // namespace
}  // namespace ashlar::kernels
