#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/schedule/schedule.h"
#include "tests/parallel/schedule/text_schedule.h"

namespace ashlar {
namespace {

using testing::ElementsAre;

TEST(Validate, MissingAction) {
  const Schedule schedule = text_schedule({0}, 2, {"0F0 0F1 0B0"});
  EXPECT_THAT(validate(schedule), ElementsAre("rank 0: 0B1 (or 0I1 and 0W1) is missing"));
}

}  // namespace
}  // namespace ashlar
