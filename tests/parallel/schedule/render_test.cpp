// Goldens: the lists and the picture of 1F1B on 4 ranks with 8 micro-batches, as files that a person can read.
#include "parallel/schedule/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "parallel/schedule/csv.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string golden(const std::string& name) {
  std::ifstream in(std::string(ASHLAR_SOURCE_DIR "/tests/golden/") + name);
  EXPECT_TRUE(in.good()) << "tests/golden/" << name << " is missing";
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Golden, ListsOfOneFOneB) {
  std::ostringstream out;
  write_csv(out, lower(make_one_f_one_b(4, 8)), CsvForm::kComputeComms);
  EXPECT_EQ(out.str(), golden("schedule_1f1b_p4_m8.csv"));
}

TEST(Golden, ListsOfOneFOneBWithWindowsAndReductions) {
  std::ostringstream out;
  write_csv(out, lower(make_one_f_one_b(4, 8), {.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true}),
            CsvForm::kComputeComms);
  EXPECT_EQ(out.str(), golden("schedule_1f1b_p4_m8_windows.csv"));
}

TEST(Golden, PictureOfOneFOneB) {
  EXPECT_EQ(render_text(simulate(lower(make_one_f_one_b(4, 8)))), golden("schedule_1f1b_p4_m8.txt"));
}

TEST(RenderText, IdleTimeAndStages) {
  const Schedule v = text_schedule({0, 1, 1, 0}, 1, {"0F0 3F0 3I0 3W0 0B0", "1F0 2F0 2I0 1B0 2W0"});
  EXPECT_EQ(render_text(simulate(lower(v))),
            "rank 0 |0F0........|3F0|3I0|3W0........|0B0    |\n"
            "rank 1 ....|1F0|2F0........|2I0|1B0    |2W0....|\n"
            "text: total 10, bubble 40.0 %\n");
}

TEST(RenderText, WidthsFollowTheTimes) {
  const ActionCosts costs{.forward = 2.5, .backward = 7.5};
  EXPECT_EQ(render_text(simulate(text_schedule({0}, 2, {"0F0 0B0 0F1 0B1"}), costs)),
            "rank 0 |F0|B0      |F1|B1      |\n"
            "text: total 20, bubble 0.0 %\n");
}

TEST(RenderText, TransfersAndReductionsThatTakeTime) {
  const ActionCosts costs{.send = 1, .receive = 1, .reduce_grads = 2, .receive_blocks = true};
  EXPECT_EQ(render_text(simulate(lower(make_one_f_one_b(2, 1)), costs)),
            "rank 0 |F0|s0|r0         |B0   |R    |\n"
            "rank 1 |r0   |F0|B0   |s0|R    ......|\n"
            "1f1b: total 10, bubble 70.0 %\n");
}

TEST(RenderText, ReductionsOfMicroBatchesAndWindowsThatTakeTime) {
  const ActionCosts costs{.reduce_grads = 1, .unshard = 1};
  const Schedule lowered =
      lower(make_one_f_one_b(1, 2), {.grad_reduce = GradReduce::kMicroBatch, .shard_windows = true});
  EXPECT_EQ(render_text(simulate(lowered, costs)),
            "rank 0 |u |F0|B0   |u |R0|u |F1|B1   |u |R1|\n"
            "1f1b: total 12, bubble 50.0 %\n");
}

TEST(RenderSvg, HoldsEveryActionThatTakesTime) {
  Timeline timeline = simulate(lower(make_one_f_one_b(2, 2)));
  timeline.name = "a<b & c";
  const std::string svg = render_svg(timeline);
  EXPECT_THAT(svg, HasSubstr("a&lt;b &amp; c: total 9, bubble 33.3 %"));
  EXPECT_THAT(svg, HasSubstr("<title>1B1 5 to 7</title>"));
  EXPECT_THAT(svg, HasSubstr(">F0</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("SEND")));
  const auto count = [&](const std::string& what) {
    size_t n = 0;
    for (size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("<g>"), 8U);
  EXPECT_EQ(count("</g>"), 8U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

}  // namespace
}  // namespace ashlar
