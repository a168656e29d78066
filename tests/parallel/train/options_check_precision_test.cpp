// Devices, precisions and loss scales.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(FlagTable, TwoPrecisionsContradict) {
  EXPECT_THAT(resolve_refusal({"--bf16", "--fp16"}), HasSubstr("--bf16 and --fp16 contradict"));
  EXPECT_TRUE(legal_options({"--fp16"}).fp16);
  EXPECT_TRUE(legal_options({"--bf16", "--fp16=false"}).bf16);
  EXPECT_FALSE(legal_options().bf16);
}

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Check, DeviceAndBackendMustFit) {
  EXPECT_THAT(resolve_refusal({"--device", "cuda", "--distributed-backend", "mpi"}),
              AllOf(HasSubstr("--device cuda and --distributed-backend mpi contradict"), HasSubstr("nccl or staged")));
  for (const char* backend : {"nccl", "staged"}) {
    EXPECT_THAT(
        resolve_refusal({"--device", "cpu", "--distributed-backend", backend}),
        AllOf(HasSubstr("--device cpu and --distributed-backend"), HasSubstr(backend), HasSubstr("contradict")));
    EXPECT_NO_THROW(resolve_options(legal_options({"--device", "cuda", "--distributed-backend", backend}), 1));
    EXPECT_NO_THROW(resolve_options(legal_options({"--distributed-backend", backend}), 1));
  }
  EXPECT_NO_THROW(resolve_options(legal_options({"--device", "cpu", "--distributed-backend", "mpi"}), 1));
}

TEST(Check, MatrixProductsAndPrecisionMustFit) {
  EXPECT_THAT(resolve_refusal({"--gemm", "own"}), HasSubstr("--gemm own needs --bf16 or --fp16"));
  EXPECT_NO_THROW(resolve_options(legal_options({"--gemm", "own", "--bf16"}), 1));
  EXPECT_THAT(resolve_refusal({"--allow-tf32", "--bf16"}), HasSubstr("--allow-tf32 and --bf16 contradict"));
}

TEST(Check, Fp16IsSixteenBitsLikeBf16) {
  EXPECT_NO_THROW(resolve_options(legal_options({"--gemm", "own", "--fp16"}), 1));
  EXPECT_THAT(resolve_refusal({"--allow-tf32", "--fp16"}), HasSubstr("--allow-tf32 and --fp16 contradict"));
  EXPECT_THAT(resolve_refusal({"--bf16", "--fp16"}), HasSubstr("--bf16 and --fp16 contradict"));
}

TEST(Check, LossScalesThatMakeNoSense) {
  for (const std::string flag : {"--loss-scale", "--initial-loss-scale", "--min-loss-scale"}) {
    for (const char* value : {"0", "-2", "1e-30"}) {
      EXPECT_THAT(parse_refusal({"--fp16", flag, value}),
                  AllOf(HasSubstr(flag + " expects"), HasSubstr("nearest legal value: 9.5367431640625e-07")));
    }
    EXPECT_THAT(parse_refusal({"--fp16", flag, "1e30"}), HasSubstr("nearest legal value: 1.8446744073709552e+19"));
    for (const char* value : {"inf", "-inf", "nan", "much"}) {
      EXPECT_THAT(
          parse_refusal({"--fp16", flag, value}),
          AllOf(
              HasSubstr(flag + " expects a number of at least 9.5367431640625e-07 and at most 1.8446744073709552e+19"),
              HasSubstr(value)));
    }
  }
  EXPECT_THAT(parse_refusal({"--fp16", "--loss-scale-window", "0"}),
              AllOf(HasSubstr("--loss-scale-window expects"), HasSubstr("nearest legal value: 1")));
  EXPECT_THAT(parse_refusal({"--fp16", "--hysteresis", "0"}),
              AllOf(HasSubstr("--hysteresis expects"), HasSubstr("nearest legal value: 1")));
  EXPECT_THAT(parse_refusal({"--fp16", "--initial-scale-power", "65"}),
              AllOf(HasSubstr("--initial-scale-power expects"), HasSubstr("nearest legal value: 64")));
}

TEST(Check, LossScaleFlagsMustFitTogether) {
  EXPECT_THAT(resolve_refusal({"--fp16", "--loss-scale", "128", "--hysteresis", "2", "--initial-scale-power", "9"}),
              AllOf(HasSubstr("--loss-scale 128 is a static scale"), HasSubstr("--hysteresis 2"),
                    HasSubstr("--initial-scale-power 9"), HasSubstr("leave out")));
  EXPECT_THAT(resolve_refusal({"--fp16", "--initial-loss-scale", "128", "--min-loss-scale", "256"}),
              AllOf(HasSubstr("--min-loss-scale 256 is above the first loss scale 128 (--initial-loss-scale)"),
                    HasSubstr("nearest legal --min-loss-scale: 128")));
  EXPECT_THAT(resolve_refusal({"--fp16", "--initial-scale-power", "-3"}),
              AllOf(HasSubstr("--min-loss-scale 1, the default,"), HasSubstr("(--initial-scale-power -3)"),
                    HasSubstr("nearest legal --min-loss-scale: 0.125")));
  EXPECT_THAT(resolve_refusal({"--fp16", "--initial-scale-power", "3", "--initial-loss-scale", "8"}),
              HasSubstr("two names for one setting"));
}

TEST(Check, LossScaleFlagsWithoutFp16) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--loss-scale", "128"},
                                                {"--initial-loss-scale", "65536"},
                                                {"--min-loss-scale", "2"},
                                                {"--loss-scale-window", "500"},
                                                {"--hysteresis", "3"},
                                                {"--initial-scale-power", "16"}}) {
    for (const char* precision : {"--bf16", "--bf16=false"}) {
      EXPECT_THAT(resolve_refusal({precision, flags[0], flags[1]}),
                  AllOf(HasSubstr(flags[0] + " " + flags[1] + " without --fp16"), HasSubstr("leave it out")));
    }
    EXPECT_NO_THROW(resolve_options(legal_options({"--fp16", flags[0], flags[1]}), 1));
  }
  // Megatron's defaults, which scripts carry along, are said to have no use.
  const std::vector<std::string> defaults = {"--loss-scale",
                                             "1",
                                             "--initial-loss-scale",
                                             "4294967296",
                                             "--min-loss-scale",
                                             "1.0",
                                             "--loss-scale-window",
                                             "1000",
                                             "--hysteresis",
                                             "2",
                                             "--bf16"};
  const ParsedCommand parsed = parse_train_options(legal_args(defaults));
  EXPECT_NO_THROW(resolve_options(parsed.options, 1));
  EXPECT_EQ(parsed.notes.size(), 5u);
}

TEST(Resolve, LossScale) {
  const TrainOptions dynamic = resolve_options(legal_options({"--fp16"}), 1);
  EXPECT_EQ(dynamic.initial_loss_scale, 4294967296.0);
  EXPECT_EQ(dynamic.min_loss_scale, 1);
  EXPECT_EQ(dynamic.loss_scale_window, 1000);
  EXPECT_EQ(dynamic.hysteresis, 2);
  EXPECT_EQ(dynamic.loss_scale, 0);
  EXPECT_NO_THROW(resolve_options(dynamic, 1));
  const TrainOptions given =
      resolve_options(legal_options({"--fp16", "--initial-loss-scale", "4294967296", "--min-loss-scale", "1",
                                     "--loss-scale-window", "1000", "--hysteresis", "2"}),
                      1);
  EXPECT_EQ(options_json(given), options_json(dynamic));
  const TrainOptions power = resolve_options(legal_options({"--fp16", "--initial-scale-power", "16"}), 1);
  EXPECT_EQ(power.initial_loss_scale, 65536);
  EXPECT_NO_THROW(resolve_options(power, 1));
  const TrainOptions fixed = resolve_options(legal_options({"--fp16", "--loss-scale", "1000"}), 1);
  EXPECT_EQ(fixed.loss_scale, 1000);
  EXPECT_EQ(fixed.initial_loss_scale, 0);
  EXPECT_NO_THROW(resolve_options(fixed, 1));
}

}  // namespace
}  // namespace ashlar
