// Properties over many (generator, ranks, micro-batches).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/schedule/schedule.h"
#include "runtime/base/error.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename Check>
void for_each_size(Check check) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", p, m));
      check(p, m);
    }
  }
}

TEST(Generators, AreValidBeforeAndAfterLowering) {
  std::vector<std::string> names = schedule_names();
  for (const std::string& name : names) {
    for_each_size([&](int p, int m) {
      const Schedule schedule = make_schedule(name, p, m);
      EXPECT_THAT(validate(schedule), ElementsAre()) << name;
      EXPECT_THAT(validate(lower(schedule)), ElementsAre()) << name;
    });
  }
  for_each_size([&](int p, int m) {
    EXPECT_THAT(validate(make_forward_only(p, m)), ElementsAre());
    EXPECT_THAT(validate(lower(make_forward_only(p, m))), ElementsAre());
  });
}

TEST(Generators, LiveMicrobatchesEqualTheFormula) {
  for_each_size([](int p, int m) {
    const Schedule one_f_one_b = make_one_f_one_b(p, m);
    const Schedule lowered = lower(one_f_one_b);
    const Schedule gpipe = lower(make_gpipe(p, m));
    const Schedule forward_only = lower(make_forward_only(p, m));
    for (int stage = 0; stage < p; ++stage) {
      EXPECT_EQ(max_live_microbatches(one_f_one_b, stage), std::min(p - stage, m));
      EXPECT_EQ(max_live_microbatches(lowered, stage), std::min(p - stage, m));
      EXPECT_EQ(max_live_microbatches(gpipe, stage), m);
      EXPECT_EQ(max_live_microbatches(forward_only, stage), 1);
      EXPECT_EQ(max_pending_weight_grads(lowered, stage), 0);
    }
  });
}

TEST(Generators, OneRankNeedsNoTransfer) {
  const Schedule schedule = lower(make_one_f_one_b(1, 2));
  EXPECT_EQ(list_text(schedule.actions[0]), "0F0 0B0 0F1 0B1 0REDUCE_GRAD");
  EXPECT_EQ(list_text(lower(make_forward_only(1, 2)).actions[0]), "0F0 0F1");
}

TEST(Generators, NamesOfTheFlag) {
  EXPECT_THAT(schedule_names(), ElementsAre("gpipe", "1f1b"));
  EXPECT_EQ(make_schedule("1F1B", 2, 2).actions, make_one_f_one_b(2, 2).actions);
  EXPECT_EQ(make_schedule("gpipe", 2, 2).actions, make_gpipe(2, 2).actions);
  try {
    make_schedule("interleaved", 2, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("--pipeline-schedule interleaved"));
    EXPECT_THAT(error.what(), HasSubstr("gpipe, 1f1b"));
  }
  EXPECT_THROW(make_gpipe(0, 1), Error);
  EXPECT_THROW(make_one_f_one_b(2, 0), Error);
}

TEST(Generators, PendingWeightGradsAreCounted) {
  const Schedule schedule = text_schedule({0}, 3, {"0F0 0I0 0F1 0I1 0W0 0F2 0I2 0W1 0W2"});
  EXPECT_THAT(validate(schedule), ElementsAre());
  EXPECT_EQ(max_pending_weight_grads(schedule, 0), 2);
  EXPECT_EQ(max_live_microbatches(schedule, 0), 2);
}

}  // namespace
}  // namespace ashlar
