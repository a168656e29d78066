#include "runtime/metrics/metrics.h"

#include <gmock/gmock.h>

#include <cmath>
#include <ctime>
#include <limits>

namespace ashlar {
namespace {

// The named local time, whatever the time zone of the machine.
std::chrono::system_clock::time_point local_time(int year, int month, int day, int hour, int minute, int second,
                                                 int micros) {
  std::tm fields{};
  fields.tm_year = year - 1900;
  fields.tm_mon = month - 1;
  fields.tm_mday = day;
  fields.tm_hour = hour;
  fields.tm_min = minute;
  fields.tm_sec = second;
  fields.tm_isdst = -1;
  return std::chrono::system_clock::from_time_t(std::mktime(&fields)) + std::chrono::microseconds(micros);
}

StepMetrics example() {
  StepMetrics m;
  m.step = 10;
  m.total_steps = 500;
  m.consumed_samples = 2560;
  m.global_batch_size = 256;
  m.loss = 9.123456;
  m.grad_norm = 1.234;
  m.learning_rate = 1.5e-4;
  m.step_time_s = 0.5123;
  m.model_tflops = 180.1;
  return m;
}

TEST(ConsoleLine, MegatronsFormat) {
  EXPECT_EQ(
      console_line(example(), local_time(2026, 8, 22, 12, 0, 0, 123456)),
      " [2026-08-22 12:00:00.123456] iteration       10/     500 | consumed samples:         2560 | elapsed time per "
      "iteration (ms): 512.3 | throughput per GPU (TFLOP/s/GPU): 180.1 | learning rate: 1.500000E-04 | global batch "
      "size:   256 | lm loss: 9.123456E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 "
      "| number of nan iterations:   0 |");
}

TEST(ConsoleLine, SmallThroughputHasDigits) {
  StepMetrics m = example();
  for (const auto& [tflops, text] :
       {std::pair{0.000195234, "0.000195"}, {0.2064, "0.206"}, {9.876, "9.88"}, {12.34, "12.3"}}) {
    m.model_tflops = tflops;
    EXPECT_THAT(console_line(m, local_time(2026, 8, 22, 12, 0, 0, 0)),
                testing::HasSubstr(std::string("throughput per GPU (TFLOP/s/GPU): ") + text + " |"));
  }
}

TEST(ConsoleLine, UnknownThroughputAndBadNumbers) {
  StepMetrics m = example();
  m.model_tflops = 0;
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.num_skipped = 1;
  m.num_nan = 12;
  EXPECT_EQ(
      console_line(m, local_time(2026, 8, 2, 3, 4, 5, 7)),
      " [2026-08-02 03:04:05.000007] iteration       10/     500 | consumed samples:         2560 | elapsed time per "
      "iteration (ms): 512.3 | learning rate: 1.500000E-04 | global batch size:   256 | lm loss: NAN | loss scale: "
      "1.0 | grad norm: inf | number of skipped iterations:   1 | number of nan iterations:  12 |");
}

TEST(ValidationLines, MegatronsFormat) {
  const std::string text =
      " validation loss at iteration 1000 | lm loss value: 3.100000E+00 | lm loss PPL: 2.219795E+01 | ";
  const std::string dashes(text.size() + 1, '-');
  EXPECT_EQ(validation_lines({.step = 1000, .loss = 3.1}), dashes + "\n" + text + "\n" + dashes);
}

TEST(ValidationMetrics, PerplexityIsCappedAndKeepsNan) {
  EXPECT_DOUBLE_EQ((ValidationMetrics{.step = 1, .loss = 0}.perplexity()), 1);
  EXPECT_DOUBLE_EQ((ValidationMetrics{.step = 1, .loss = 1e6}.perplexity()), std::exp(20.0));
  EXPECT_TRUE(std::isnan(ValidationMetrics{.step = 1, .loss = std::nan("")}.perplexity()));
}

}  // namespace
}  // namespace ashlar
