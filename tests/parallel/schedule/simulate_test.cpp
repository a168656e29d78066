#include "parallel/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

// The bubble of both is (p - 1)(F + B) when transfers are free: arXiv:1811.06965 section 2.3, arXiv:2104.04473
// section 2.2.
TEST(Simulate, BubbleOfGpipeAndOneFOneB) {
  const ActionCosts costs{.forward = 18.522, .backward = 18.086 + 9.337};
  const double per_microbatch = 18.522 + 18.086 + 9.337;
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      for (const std::string& name : schedule_names()) {
        const Schedule schedule = make_schedule(name, p, m);
        const double expected = (m + p - 1) * per_microbatch;
        EXPECT_NEAR(simulate(schedule, costs).total, expected, 1e-9 * expected) << name << p << " " << m;
        const Timeline lowered = simulate(lower(schedule), costs);
        EXPECT_NEAR(lowered.total, expected, 1e-9 * expected) << name << p << " " << m;
        EXPECT_NEAR(lowered.bubble_fraction(), (p - 1.0) / (m + p - 1.0), 1e-9);
      }
    }
  }
}

// With a transfer time the bubble of 1F1B grows by [2(p-1)m/p + 2(p-2)] transfers: the form that reproduces the rates
// published for p = 8 and 16 (arXiv:2401.10241 tables 4 and 5), here with their profiled times in milliseconds.
TEST(Simulate, PublishedBubbleRatesOfOneFOneB) {
  struct Case {
    int p, m;
    double forward, input, weight, transfer, published;
  };
  for (const Case& c :
       {Case{8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431}, Case{8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985},
        Case{8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240}, Case{16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552},
        Case{16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082}, Case{16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251}}) {
    const ActionCosts costs{.forward = c.forward, .backward = c.input + c.weight, .transfer = c.transfer};
    const double closed_form =
        (c.p - 1) * (c.forward + c.input + c.weight) + (2.0 * (c.p - 1) * c.m / c.p + 2 * (c.p - 2)) * c.transfer;
    const double compute = c.m * (c.forward + c.input + c.weight);
    const Timeline timeline = simulate(lower(make_one_f_one_b(c.p, c.m)), costs);
    EXPECT_NEAR(timeline.total - compute, closed_form, 1e-6 * closed_form);
    EXPECT_NEAR(timeline.bubble_fraction(), c.published, 1e-4);
  }
}

TEST(Simulate, StartsAndEnds) {
  const ActionCosts costs{.forward = 2, .backward = 4, .transfer = 10};
  const Timeline timeline = simulate(lower(make_one_f_one_b(2, 1)), costs);
  std::string text;
  for (const std::vector<TimedAction>& rank : timeline.ranks) {
    for (const TimedAction& timed : rank) {
      text += fmt::format("{}:{}-{} ", action_text(timed.action), timed.start, timed.end);
    }
  }
  EXPECT_EQ(text,
            "0F0:0-2 0SEND_F0:2-2 0RECV_B0:2-2 0B0:28-32 0REDUCE_GRAD:32-32 "
            "1RECV_F0:0-0 1F0:12-14 1B0:14-18 1SEND_B0:18-18 1REDUCE_GRAD:18-18 ");
  EXPECT_EQ(timeline.total, 32);
  EXPECT_EQ(timeline.compute_time(1), 6);
  EXPECT_DOUBLE_EQ(timeline.bubble_fraction(), 1 - 12.0 / 64);
}

TEST(Simulate, SendsReceivesAndReductionsCanCost) {
  const ActionCosts costs{.send = 1, .receive = 1, .reduce_grads = 5, .receive_blocks = true};
  const Timeline timeline = simulate(lower(make_one_f_one_b(2, 1)), costs);
  EXPECT_EQ(timeline.ranks[1][0].end, 2);   // the receive began at 0 and holds the rank until the send is done
  EXPECT_EQ(timeline.ranks[1][3].end, 6);   // F, B, SEND_B
  EXPECT_EQ(timeline.ranks[1][4].end, 11);  // REDUCE_GRAD
  EXPECT_EQ(timeline.total, 13);            // rank 0: RECV_B at 6, B until 8, REDUCE_GRAD
}

TEST(Simulate, DeadlockIsAnError) {
  EXPECT_THROW(simulate(text_schedule({0, 1}, 2, {"0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"})), Error);
}

// A posted receive may stand long before its message is sent; one that holds its rank may not.
TEST(Simulate, BlockingReceivesDeadlockWherePostedOnesDoNot) {
  const Schedule early = text_schedule({0, 1}, 1, {"0RECV_B0 0F0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"});
  EXPECT_EQ(simulate(early).total, 6);
  EXPECT_THROW(simulate(early, {.receive_blocks = true}), Error);
}

}  // namespace
}  // namespace ashlar
