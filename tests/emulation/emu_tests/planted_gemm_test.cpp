// Bugs of a pipelined tensor-core kernel: each must be reported with its cause or show in the values.
#include "tests/emulation/emu_tests/planted_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/emulation/emu/emulator.h"

namespace ashlar::emu {
namespace {

// Two blocks each way, tails in all three sizes, more steps than stages.
constexpr int kM = 72;
constexpr int kN = 88;
constexpr int kK = 136;

struct Outcome {
  bool wrong_values = false;
  std::vector<Report> reports;
  Statistics statistics{};

  bool has(Fault fault) const {
    for (const Report& report : reports) {
      if (report.fault == fault) {
        return true;
      }
    }
    return false;
  }
};

Outcome run_gemm(GemmBug bug, uint64_t seed) {
  const auto new_matrix = [](int count) {
    return static_cast<__nv_bfloat16*>(allocate(static_cast<size_t>(count) * sizeof(__nv_bfloat16)));
  };
  __nv_bfloat16* a = new_matrix(kM * kK);
  __nv_bfloat16* b = new_matrix(kK * kN);
  __nv_bfloat16* c = new_matrix(kM * kN);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int i = 0; i < kM * kK; ++i) {
    a[i] = __float2bfloat16(normal(random));
  }
  for (int i = 0; i < kK * kN; ++i) {
    b[i] = __float2bfloat16(normal(random));
  }
  options() = Options{};
  options().seed = seed;
  options().random_order = seed > 0;
  take_reports();
  planted_gemm(bug, c, a, b, kM, kN, kK);
  options() = Options{};
  Outcome outcome{false, take_reports(), last_statistics()};
  for (int row = 0; row < kM; ++row) {
    for (int column = 0; column < kN; ++column) {
      double expected = 0;
      for (int k = 0; k < kK; ++k) {
        expected += static_cast<double>(__bfloat162float(a[row * kK + k])) *
                    static_cast<double>(__bfloat162float(b[k * kN + column]));
      }
      const double error = std::abs(static_cast<double>(__bfloat162float(c[row * kN + column])) - expected);
      // bf16 has 8 bits: half a step is up to 2^-8 of the value.
      outcome.wrong_values = outcome.wrong_values || !(error <= std::abs(expected) / 250 + 1e-4);
    }
  }
  release(a);
  release(b);
  release(c);
  return outcome;
}

TEST(PlantedGemm, CorrectKernelPasses) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Outcome outcome = run_gemm(GemmBug::kNone, seed);
    EXPECT_FALSE(outcome.wrong_values);
    EXPECT_TRUE(outcome.reports.empty()) << describe(outcome.reports[0]);
    EXPECT_EQ(outcome.statistics.ldmatrix_conflicts, 0u);
  }
}

TEST(PlantedGemm, CausesAreReported) {
  struct Expected {
    GemmBug bug;
    Fault fault;
  };
  constexpr Expected kExpected[] = {{GemmBug::kTooLittleSharedMemory, Fault::kSharedBounds},
                                    {GemmBug::kCopyWithoutPredicate, Fault::kGlobalBounds},
                                    {GemmBug::kWaitTooWeak, Fault::kAsyncCopy},
                                    {GemmBug::kNoWait, Fault::kAsyncCopy}};
  for (const Expected& expected : kExpected) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      EXPECT_TRUE(run_gemm(expected.bug, seed).has(expected.fault))
          << "bug " << static_cast<int>(expected.bug) << " seed " << seed;
    }
  }
  // Which rule is broken first depends on the order.
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (const GemmBug bug : {GemmBug::kNoBarrier, GemmBug::kWrongStageOverwritten}) {
      const Outcome outcome = run_gemm(bug, seed);
      EXPECT_TRUE(outcome.has(Fault::kSharedRace) || outcome.has(Fault::kAsyncCopy) ||
                  outcome.has(Fault::kUninitialised))
          << "bug " << static_cast<int>(bug) << " seed " << seed;
    }
    // Columns beyond the row are the next row's first, which another block writes; after the last row is nothing.
    const Outcome outcome = run_gemm(GemmBug::kNoColumnBound, seed);
    EXPECT_TRUE(outcome.has(Fault::kGlobalRace) || outcome.has(Fault::kGlobalBounds)) << "seed " << seed;
  }
}

// No rule of the machine is broken here; only the oracle sees it.
TEST(PlantedGemm, WrongArithmeticShowsInTheValues) {
  for (const GemmBug bug : {GemmBug::kDepthTailDropped, GemmBug::kWrongFragmentAddress}) {
    const Outcome outcome = run_gemm(bug, 1);
    EXPECT_TRUE(outcome.wrong_values);
    EXPECT_TRUE(outcome.reports.empty());
  }
}

TEST(PlantedGemm, BankConflictsAreCounted) {
  const Outcome outcome = run_gemm(GemmBug::kNoSwizzle, 1);
  EXPECT_FALSE(outcome.wrong_values);
  EXPECT_TRUE(outcome.reports.empty());
  EXPECT_GT(outcome.statistics.ldmatrix_conflicts, outcome.statistics.ldmatrix_phases);
}

}  // namespace
}  // namespace ashlar::emu
