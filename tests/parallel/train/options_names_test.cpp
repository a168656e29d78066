// Names that other systems have for our settings, and what is said of settings that do not go together.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::HasSubstr;

TEST(Parse, NamesOfOtherSystemsGetOurs) {
  EXPECT_THAT(parse_refusal({"--gradient-accumulation-steps", "4"}),
              HasSubstr("unknown flag --gradient-accumulation-steps: use --global-batch-size"));
  EXPECT_THAT(parse_refusal({"train_micro_batch_size_per_gpu=4"}),
              HasSubstr("unknown setting train_micro_batch_size_per_gpu: use --micro-batch-size"));
  EXPECT_THAT(parse_refusal({"--zero_optimization.stage", "2"}), HasSubstr("use --zero-stage N"));
  EXPECT_THAT(parse_refusal({"--Offload_Optimizer", "cpu"}), HasSubstr("use --offload-optimizer-device cpu"));
  for (const ForeignName& foreign : foreign_names()) {
    EXPECT_EQ(find_flag(foreign.name), nullptr) << foreign.name << " is a flag";
    EXPECT_EQ(foreign_name_hint("--" + foreign.name), foreign.instead);
    size_t at = 0;
    while ((at = foreign.instead.find("--", at)) != std::string::npos) {  // flags that it names are flags
      const size_t end = foreign.instead.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at);
      const std::string name = foreign.instead.substr(at + 2, end == std::string::npos ? end : end - at - 2);
      const Flag* flag = find_flag(name);
      EXPECT_TRUE(flag != nullptr && flag->status == FlagStatus::kDone) << foreign.name << ": " << foreign.instead;
      at += 2;
    }
  }
}

TEST(Parse, SumsOfGradientsInTwoPrecisionsContradict) {
  EXPECT_THAT(parse_refusal({"--bf16", "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"}),
              HasSubstr("--accumulate-allreduce-grads-in-fp32 and --grad-reduce-in-bf16 contradict each other"));
  EXPECT_NO_THROW(parse_train_options({"--bf16", "--accumulate-allreduce-grads-in-fp32"}));
}

TEST(Parse, WholeGradientsOfShardedStagesAreSaid) {
  const auto notes = [](const std::vector<std::string>& flags) {
    return fmt::format("{}", fmt::join(parse_train_options(flags).notes, "\n"));
  };
  EXPECT_THAT(notes({"--zero-stage", "2", "--grad-reduce", "step"}),
              HasSubstr("--zero-stage 2 with --grad-reduce step: gradients are whole"));
  EXPECT_EQ(notes({"--zero-stage", "2"}), "");
  EXPECT_EQ(notes({"--zero-stage", "1", "--grad-reduce", "step"}), "");
  EXPECT_THAT(notes({"--overlap-param-gather"}), HasSubstr("no weights are gathered with --zero-stage 0, the default"));
  EXPECT_THAT(notes({"--overlap-grad-reduce", "--device", "cpu"}), HasSubstr("--overlap-grad-reduce has no use here"));
}

}  // namespace
}  // namespace ashlar
