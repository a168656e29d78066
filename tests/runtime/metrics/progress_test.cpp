#include "runtime/metrics/progress.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace ashlar {
namespace {

StepMetrics example() {
  StepMetrics m;
  m.step = 120;
  m.total_steps = 500;
  m.loss = 2.34567;
  m.tokens_per_s = 12345.4;
  m.step_time_s = 0.5;
  return m;
}

TEST(Progress, Text) {
  EXPECT_EQ(Progress::text(example(), 0.5), "[====>               ] 120/500  loss 2.3457  12,345 tok/s  3m10s left");
  StepMetrics m = example();
  m.step = 500;
  EXPECT_EQ(Progress::text(m, 0.5), "[====================] 500/500  loss 2.3457  12,345 tok/s  0s left");
  m.step = 0;
  m.loss = std::nan("");
  m.tokens_per_s = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Progress::text(m, std::nan("")), "[>                   ]   0/500  loss nan  ? tok/s  ? left");
}

TEST(Progress, NeverWraps) {
  StepMetrics m = example();
  m.step = m.total_steps = std::numeric_limits<int64_t>::max();
  m.loss = 1e300;
  EXPECT_EQ(Progress::text(m, 1e6).size(), 79U);
}

TEST(Progress, DrawsInPlaceOnATerminal) {
  std::ostringstream out;
  {
    Progress progress(out, true);
    progress.update(example());
    const std::string line = fmt::format("\r{}\x1b[K", Progress::text(example(), 0.5));
    EXPECT_EQ(out.str(), line);
    progress.clear();
    progress.clear();
    EXPECT_EQ(out.str(), fmt::format("{}\r\x1b[K", line));
    progress.update(example());
    EXPECT_EQ(out.str(), fmt::format("{}\r\x1b[K{}", line, line));
  }
  EXPECT_EQ(out.str().back(), '\n');
}

TEST(Progress, SilentElsewhere) {
  std::ostringstream out;
  {
    Progress progress(out, false);
    progress.update(example());
    progress.clear();
  }
  EXPECT_EQ(out.str(), "");
}

TEST(Progress, Durations) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m00s");
  EXPECT_EQ(duration_text(65), "1m05s");
  EXPECT_EQ(duration_text(7380), "2h03m");
  EXPECT_EQ(duration_text(4 * 86400 + 5 * 3600), "4d05h");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(duration_text(std::nan("")), "?");
}

}  // namespace
}  // namespace ashlar
