#include "parallel/zero/loss_scaler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ashlar {
namespace {

// Scales behind each step; 'x' is an overflow, anything else a good step.
std::vector<double> scales_behind(LossScaler& scaler, const std::string& steps) {
  std::vector<double> scales;
  for (const char step : steps) {
    scaler.step_done(step == 'x');
    scales.push_back(scaler.scale());
  }
  return scales;
}

constexpr LossScaleConfig kSmall{.dynamic = true, .initial = 1024, .min = 64, .window = 4, .hysteresis = 2};

TEST(LossScaler, DoublesBehindTheWindowAndHalvesWhenHysteresisIsUsedUp) {
  LossScaler scaler(kSmall);
  EXPECT_EQ(scaler.scale(), 1024);
  // The first overflow is forgiven, the second and all behind it are not, until a doubling.
  EXPECT_EQ(scales_behind(scaler, "..x...x.x...."),
            (std::vector<double>{1024, 1024, 1024, 1024, 1024, 1024, 512, 512, 256, 256, 256, 256, 512}));
  EXPECT_EQ(scales_behind(scaler, "xx"), (std::vector<double>{512, 256}));
}

TEST(LossScaler, WithoutPatienceEveryOverflowHalves) {
  LossScaleConfig config = kSmall;
  config.hysteresis = 1;
  LossScaler scaler(config);
  EXPECT_EQ(scales_behind(scaler, "x.x...."), (std::vector<double>{512, 512, 256, 256, 256, 256, 512}));
}

TEST(LossScaler, StaysBetweenItsEnds) {
  LossScaler scaler(kSmall);
  EXPECT_EQ(scales_behind(scaler, "xxxxxxx"), (std::vector<double>{1024, 512, 256, 128, 64, 64, 64}));
  LossScaler large({.dynamic = true, .initial = kLargestLossScale / 2, .window = 1});
  EXPECT_EQ(scales_behind(large, "..."), (std::vector<double>(3, kLargestLossScale)));
}

TEST(LossScaler, EndsBehindSoManyOverflowsAtTheFloor) {
  LossScaler scaler(kSmall);
  scales_behind(scaler, "xxxxx");  // at 64 now; the steps on the way down do not count
  ASSERT_EQ(scaler.scale(), 64);
  scales_behind(scaler, std::string(LossScaler::kMostSkipsAtFloor - 1, 'x'));
  EXPECT_FALSE(scaler.is_at_end());
  scales_behind(scaler, ".");  // in a row
  scales_behind(scaler, std::string(LossScaler::kMostSkipsAtFloor - 1, 'x'));
  EXPECT_FALSE(scaler.is_at_end());
  scales_behind(scaler, "x");
  EXPECT_TRUE(scaler.is_at_end());
}

TEST(LossScaler, AStaticScaleStaysAndEndsToo) {
  LossScaler scaler({.initial = 1000});
  EXPECT_EQ(scales_behind(scaler, "x.x"), (std::vector<double>(3, 1000)));
  EXPECT_FALSE(scaler.is_at_end());
  scales_behind(scaler, std::string(LossScaler::kMostSkipsAtFloor, 'x'));
  EXPECT_TRUE(scaler.is_at_end());
}

// Saved behind every step of a long run, and gone on from: the same scales to the end.
TEST(LossScaler, GoesOnFromASavedState) {
  const std::string steps = "..x...x.x....xxx.....xxxxxxxxxxxx....x";
  LossScaler whole(kSmall);
  const std::vector<double> expected = scales_behind(whole, steps);
  for (size_t at = 0; at < steps.size(); ++at) {
    LossScaler first(kSmall), second(kSmall);
    scales_behind(first, steps.substr(0, at));
    second.restore(first.state());
    EXPECT_EQ(second.state(), first.state()) << at;
    EXPECT_EQ(scales_behind(second, steps.substr(at)),
              (std::vector<double>{expected.begin() + static_cast<ptrdiff_t>(at), expected.end()}))
        << at;
    EXPECT_EQ(second.state(), whole.state()) << at;
  }
}

TEST(LossScaler, OtherSettingsThanThoseThatWereSaved) {
  LossScaler fixed({.initial = 8});
  fixed.restore({.scale = 4096, .good_steps = 3, .hysteresis_left = 1, .skips_at_floor = 4});
  EXPECT_EQ(fixed.scale(), 8);
  scales_behind(fixed, std::string(LossScaler::kMostSkipsAtFloor - 5, 'x'));
  EXPECT_FALSE(fixed.is_at_end());
  scales_behind(fixed, "x");
  EXPECT_TRUE(fixed.is_at_end());
  LossScaler scaler({.dynamic = true, .initial = 8, .min = 2, .window = 3, .hysteresis = 1});
  scaler.restore({.scale = 1, .good_steps = 7, .hysteresis_left = 5});
  EXPECT_EQ(scaler.state(), (LossScaler::State{.scale = 2, .good_steps = 7, .hysteresis_left = 1}));
  EXPECT_EQ(scales_behind(scaler, ".x"), (std::vector<double>{4, 2}));
}

}  // namespace
}  // namespace ashlar
