#include "parallel/zero/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

using testing::HasSubstr;

LrSchedule example(LrDecayStyle style) {
  return {.max_lr = 1e-3, .min_lr = 1e-4, .warmup_init = 0, .warmup_steps = 10, .decay_steps = 110, .style = style};
}

TEST(LrSchedule, FirstUpdateUsesOneStepOfTheWarmup) {
  for (LrDecayStyle style : {LrDecayStyle::kConstant, LrDecayStyle::kLinear, LrDecayStyle::kCosine}) {
    const LrSchedule schedule = example(style);
    schedule.check();
    EXPECT_DOUBLE_EQ(schedule.rate(1), 1e-4);
    EXPECT_DOUBLE_EQ(schedule.rate(5), 5e-4);
    EXPECT_DOUBLE_EQ(schedule.rate(10), 1e-3);
  }
  LrSchedule from_half = example(LrDecayStyle::kConstant);
  from_half.warmup_init = 5e-4;
  EXPECT_DOUBLE_EQ(from_half.rate(1), 5.5e-4);
  EXPECT_DOUBLE_EQ(from_half.rate(10), 1e-3);
}

TEST(LrSchedule, Decay) {
  const LrSchedule constant = example(LrDecayStyle::kConstant);
  const LrSchedule linear = example(LrDecayStyle::kLinear);
  const LrSchedule cosine = example(LrDecayStyle::kCosine);
  EXPECT_DOUBLE_EQ(constant.rate(60), 1e-3);
  EXPECT_DOUBLE_EQ(constant.rate(100000), 1e-3);
  EXPECT_DOUBLE_EQ(linear.rate(11), 1e-4 + 9e-4 * 0.99);
  EXPECT_DOUBLE_EQ(linear.rate(60), 5.5e-4);
  EXPECT_DOUBLE_EQ(cosine.rate(60), 5.5e-4);
  EXPECT_DOUBLE_EQ(cosine.rate(35), 1e-4 + 9e-4 * (1 + std::cos(std::numbers::pi / 4)) / 2);
  for (const LrSchedule& schedule : {linear, cosine}) {
    for (int64_t step = 10; step < 110; ++step) EXPECT_GT(schedule.rate(step), schedule.rate(step + 1)) << step;
    EXPECT_DOUBLE_EQ(schedule.rate(110), 1e-4);
    EXPECT_EQ(schedule.rate(111), 1e-4);
    EXPECT_EQ(schedule.rate(1000000), 1e-4);
  }
}

TEST(LrSchedule, NoWarmup) {
  LrSchedule schedule = example(LrDecayStyle::kLinear);
  schedule.warmup_steps = 0;
  schedule.decay_steps = 100;
  schedule.check();
  EXPECT_DOUBLE_EQ(schedule.rate(1), 1e-4 + 9e-4 * 0.99);
  EXPECT_DOUBLE_EQ(schedule.rate(100), 1e-4);
}

void expect_refused(const LrSchedule& schedule, const std::string& flag) {
  try {
    schedule.check();
    ADD_FAILURE() << "accepted; expected an error about " << flag;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(flag));
  }
}

TEST(LrSchedule, BadSettingsNameTheFlag) {
  LrSchedule schedule = example(LrDecayStyle::kCosine);
  schedule.max_lr = std::numeric_limits<double>::quiet_NaN();
  expect_refused(schedule, "--lr nan");
  schedule = example(LrDecayStyle::kCosine);
  schedule.max_lr = -1;
  expect_refused(schedule, "--lr -1");
  schedule = example(LrDecayStyle::kCosine);
  schedule.min_lr = 2e-3;
  expect_refused(schedule, "--min-lr 0.002");
  schedule = example(LrDecayStyle::kCosine);
  schedule.warmup_init = 2e-3;
  expect_refused(schedule, "--lr-warmup-init 0.002");
  schedule = example(LrDecayStyle::kCosine);
  schedule.warmup_steps = -1;
  expect_refused(schedule, "--lr-warmup-iters -1");
  schedule = example(LrDecayStyle::kCosine);
  schedule.decay_steps = 10;
  expect_refused(schedule, "nearest legal value is 9");
  schedule.style = LrDecayStyle::kConstant;
  schedule.check();  // a constant rate has no end to reach
}

TEST(LrSchedule, Styles) {
  EXPECT_EQ(parse_lr_decay_style("constant"), LrDecayStyle::kConstant);
  EXPECT_EQ(parse_lr_decay_style("linear"), LrDecayStyle::kLinear);
  EXPECT_EQ(parse_lr_decay_style("cosine"), LrDecayStyle::kCosine);
  try {
    parse_lr_decay_style("WSD");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("--lr-decay-style WSD"));
  }
}

}  // namespace
}  // namespace ashlar
