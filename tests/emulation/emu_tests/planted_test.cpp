// The emulator must notice every planted bug, under every order of threads, and say nothing to the correct twins.
#include "tests/emulation/emu_tests/planted.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace ashlar::emu {
namespace {

constexpr size_t kNumValues = 1024;

class Planted : public testing::TestWithParam<PlantedCase> {
 protected:
  Planted() {
    options() = Options{};
    options().max_block_accesses = 100'000;
    memory_ = {static_cast<float*>(allocate(kNumValues * sizeof(float))),
               static_cast<float*>(allocate(kNumValues * sizeof(float))),
               static_cast<int*>(allocate(16 * sizeof(int)))};
    take_reports();
  }
  ~Planted() override {
    options() = Options{};
    release(memory_.a);
    release(memory_.b);
    release(memory_.flags);
  }

  std::vector<Report> run(bool faulty) {
    std::fill_n(memory_.a, kNumValues, 0.0f);
    for (size_t i = 0; i < kNumValues; ++i) {
      memory_.b[i] = static_cast<float>(i) * 0.5f;
    }
    std::fill_n(memory_.flags, 16, 0);
    GetParam().launch(faulty, memory_);
    return take_reports();
  }

  PlantedMemory memory_{};
};

constexpr uint64_t kSeeds = 20;

TEST_P(Planted, IsReportedUnderEveryOrder) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    options().seed = seed;
    options().random_order = seed > 0;  // seed 0: ascending order
    const std::vector<Report> reports = run(true);
    const bool is_named = std::any_of(reports.begin(), reports.end(),
                                      [&](const Report& report) { return report.fault == GetParam().fault; });
    EXPECT_TRUE(is_named) << "seed " << seed << ": expected " << fault_name(GetParam().fault)
                          << ", first report: " << (reports.empty() ? "none" : describe(reports[0]));
    if (seed == 1 && !reports.empty()) {
      fmt::print("  {}\n", describe(reports[0]));
    }
  }
}

TEST_P(Planted, CorrectTwinPasses) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    options().seed = seed;
    options().random_order = seed > 0;
    const std::vector<Report> reports = run(false);
    EXPECT_TRUE(reports.empty()) << "seed " << seed << ": " << describe(reports[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Planted, testing::ValuesIn(planted_cases().begin(), planted_cases().end()),
                         [](const auto& planted) { return fmt::format("{}_{}", planted.param.name, planted.index); });

TEST(Reports, NameKernelBlockThreadAndLine) {
  options() = Options{};
  take_reports();
  auto* values = static_cast<float*>(allocate(kNumValues * sizeof(float)));
  for (const PlantedCase& planted : planted_cases()) {
    if (std::strcmp(planted.name, "no_bound") == 0) {
      planted.launch(true, {values, nullptr, nullptr});
    }
  }
  const std::vector<Report> reports = take_reports();
  ASSERT_EQ(reports.size(), 1u);
  const std::string text = describe(reports[0]);
  EXPECT_NE(text.find("global bounds: write of 4 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("no_bound<true>"), std::string::npos) << text;
  EXPECT_NE(text.find("block (4,0,0)"), std::string::npos) << text;
  EXPECT_NE(text.find("planted.cu:"), std::string::npos) << text;
  release(values);
}

TEST(Reports, MemoryIsGoneOnceReleased) {
  auto* values = static_cast<float*>(allocate(kNumValues * sizeof(float)));
  EXPECT_TRUE(is_allocated(values, kNumValues * sizeof(float)));
  EXPECT_FALSE(is_allocated(values, kNumValues * sizeof(float) + 1));
  release(values);
  EXPECT_FALSE(is_allocated(values, 1));
}

}  // namespace
}  // namespace ashlar::emu
