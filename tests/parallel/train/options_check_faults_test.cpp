// The --test-... options.
#include <gmock/gmock.h>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::Contains;
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
  EXPECT_EQ(offload->file, "");
  EXPECT_EQ(parse_test_point("test-offload-fault", "rank=1,bytes=1,file=param")->file, "param");
  EXPECT_EQ(parse_test_point("test-offload-fault", "rank=1,bytes=1,file=optimizer")->file, "optimizer");
  EXPECT_THAT(refusal([] { parse_test_point("test-offload-fault", "rank=1,bytes=1,file=x"); }), HasSubstr("no place"));
  EXPECT_THAT(refusal([] { parse_test_point("test-write-fault", "rank=1,bytes=1,file=param"); }),
              HasSubstr("no place"));
  EXPECT_THAT(refusal([] { parse_test_point("test-offload-fault", "rank=1,bytes=1,kill=1"); }), HasSubstr("no place"));
  EXPECT_FALSE(parse_test_point("test-nan", ""));
  for (const char* wrong : {"rank=3", "rank=3,step=x,point=receive", "rank=3,step=2,point=lunch",
                            "rank=1,rank=2,step=2", "rank=-1,step=2,point=receive", "rank=3,step=2,point=receive,"}) {
    EXPECT_THAT(refusal([&] { parse_test_point("test-hang", wrong); }), HasSubstr("--test-hang expects")) << wrong;
  }
  EXPECT_THAT(resolve_refusal({"--test-nan", "rank=1"}), HasSubstr("--test-nan expects rank=R,step=S"));
  EXPECT_THAT(resolve_refusal({"--test-hang", "rank=0,step=1,point=lunch"}),
              HasSubstr("points are all-reduce, receive and checkpoint"));
  EXPECT_THAT(resolve_refusal({"--test-write-fault", "rank=0,bytes=1,kill=1,kill=1", "--save", "d"}),
              HasSubstr("kill stands there twice"));
}

// Whatever else is wrong with it, every one of them is read.
TEST(TestPoints, NoneIsAcceptedUnread) {
  int seen = 0;
  for (const Flag& flag : done_flags()) {
    if (flag.name.starts_with("test-")) {
      ++seen;
      for (const char* wrong : {"foo", "rank=0,foo=1", "rank=0,step=1,bytes=1", "rank=0", "rank=0,rank=0"}) {
        EXPECT_THAT(resolve_refusal({"--" + flag.name, wrong}), HasSubstr("--" + flag.name + " expects rank=R"));
      }
    }
  }
  EXPECT_EQ(seen, 5);
}

// A fault that cannot come would make a run look as if it had stood the test.
TEST(TestPoints, ThatCannotComeAreRefused) {
  const std::vector<std::string> files{"--offload-optimizer-device", "nvme", "--nvme-path", "d"};
  const std::vector<std::string> stages{"--pipeline-model-parallel-size", "2"};
  const auto with = [](std::vector<std::string> flags, const std::vector<std::string>& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  };
  const std::vector<std::string> hang{"--test-hang", "rank=0,step=1,point=receive"};
  EXPECT_THAT(resolve_refusal(hang),
              AllOf(HasSubstr("no rank receives anything"), HasSubstr("nearest legal value: point=all-reduce")));
  EXPECT_NO_THROW(resolve_options(legal_options(with(stages, hang)), 2));
  EXPECT_THAT(resolve_refusal({"--test-hang", "rank=0,step=1,point=checkpoint"}), HasSubstr("needs --save DIR"));
  EXPECT_THAT(resolve_refusal({"--test-write-fault", "rank=0,bytes=1"}), HasSubstr("needs --save DIR"));
  EXPECT_THAT(resolve_refusal({"--test-offload-fault", "rank=0,bytes=1"}),
              HasSubstr("needs --offload-optimizer-device nvme"));
  EXPECT_NO_THROW(resolve_options(legal_options(with(files, {"--test-offload-fault", "rank=0,bytes=1"})), 1));
  // Beside a GPU the disk of the weights may be the only one.
  const std::vector<std::string> weights{
      "--zero-stage", "3", "--offload-optimizer-device", "cpu", "--offload-param-device", "nvme", "--nvme-path", "d"};
  EXPECT_NO_THROW(
      resolve_options(legal_options(with(weights, {"--test-offload-fault", "rank=0,bytes=1,file=param"})), 1));
  EXPECT_THAT(resolve_refusal(with(weights, {"--test-offload-fault", "rank=0,bytes=1"})),
              HasSubstr("needs --offload-optimizer-device nvme"));
  EXPECT_THAT(resolve_refusal(with(files, {"--test-offload-fault", "rank=0,bytes=1,file=param"})),
              HasSubstr("needs --offload-param-device nvme"));
  for (const std::string flag : {"--test-nan", "--test-overflow"}) {
    EXPECT_THAT(resolve_refusal({flag, "rank=0,step=0"}), HasSubstr("nearest legal value: step=1"));
    EXPECT_THAT(resolve_refusal({flag, "rank=0,step=21"}),
                AllOf(HasSubstr(flag + " rank=0,step=21: the run ends with step 20"), HasSubstr("step=20")));
    EXPECT_THAT(resolve_refusal({flag, "rank=0,step=6", "--exit-interval", "5"}),
                AllOf(HasSubstr("ends with step 5 (--exit-interval)"), HasSubstr("nearest legal value: step=5")));
    EXPECT_NO_THROW(resolve_options(
        legal_options({flag, "rank=0,step=6", "--exit-interval", "5", "--load", "d", "--save", "d"}), 1));
    EXPECT_THAT(resolve_refusal({flag, "rank=2,step=1"}, 2),
                AllOf(HasSubstr("there is no rank 2 among 2 ranks"), HasSubstr("nearest legal value: rank=1")));
    EXPECT_THAT(resolve_refusal({flag, "rank=0,step=1", "--verify-layout", "2"}),
                HasSubstr(flag + " does nothing with --verify-layout"));
    EXPECT_THAT(parse_train_options(legal_args({"--dry-run", flag, "rank=0,step=1"})).notes,
                Contains(HasSubstr(flag + " has no use here: --dry-run trains nothing")));
  }
}

}  // namespace
}  // namespace ashlar
