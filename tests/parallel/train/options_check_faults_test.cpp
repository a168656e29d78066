// The --test-... options.
#include <gmock/gmock.h>

#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::HasSubstr;

TEST(TestPoints, Overflow) {
  const auto point = parse_test_point("test-overflow", "rank=1,step=3,tensor=h.2.mlp.c_fc.weight");
  ASSERT_TRUE(point);
  EXPECT_EQ(point->rank, 1);
  EXPECT_EQ(point->step, 3);
  EXPECT_EQ(point->tensor, "h.2.mlp.c_fc.weight");
  EXPECT_EQ(parse_test_point("test-overflow", "rank=1,step=3")->tensor, "");
  EXPECT_THAT(resolve_refusal({"--test-overflow", "rank=1"}), HasSubstr("--test-overflow expects rank=R,step=S"));
  EXPECT_THAT(resolve_refusal({"--test-nan", "rank=0,step=1,tensor=wte.weight"}), HasSubstr("has no place there"));
}

TEST(TestPoints, AreReadAndChecked) {
  const auto hang = parse_test_point("test-hang", "rank=3,step=2,point=all-reduce");
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->rank, 3);
  EXPECT_EQ(hang->step, 2);
  EXPECT_EQ(hang->point, "all-reduce");
  const auto fault = parse_test_point("test-write-fault", "rank=1,bytes=4096,kill=1");
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->bytes, 4096);
  EXPECT_TRUE(fault->kill);
  const auto offload = parse_test_point("test-offload-fault", "rank=1,bytes=4096");
  EXPECT_EQ(offload->rank, 1);
  EXPECT_EQ(offload->bytes, 4096);
  EXPECT_THAT(refusal([] { parse_test_point("test-offload-fault", "rank=1,bytes=1,kill=1"); }), HasSubstr("no place"));
  EXPECT_FALSE(parse_test_point("test-nan", ""));
  for (const char* wrong : {"rank=3", "rank=3,step=x,point=receive", "rank=3,step=2,point=lunch",
                            "rank=1,rank=2,step=2", "rank=-1,step=2,point=receive", "rank=3,step=2,point=receive,"}) {
    EXPECT_THAT(refusal([&] { parse_test_point("test-hang", wrong); }), HasSubstr("--test-hang expects")) << wrong;
  }
  EXPECT_THAT(resolve_refusal({"--test-nan", "rank=1"}), HasSubstr("--test-nan expects rank=R,step=S"));
}

}  // namespace
}  // namespace ashlar
