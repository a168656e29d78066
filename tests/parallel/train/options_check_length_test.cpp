// Batches, the length of a run and its learning rate.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Resolve, SamplesBecomeSteps) {
  std::vector<std::string> args = legal_args();
  args.erase(std::ranges::find(args, "--train-iters"), std::ranges::find(args, "--lr"));
  const std::vector<std::string> more = {"--train-samples",     "85", "--lr-decay-samples", "60",
                                         "--lr-warmup-samples", "16"};
  args.insert(args.end(), more.begin(), more.end());
  const TrainOptions o = resolve_options(parse_train_options(args).options, 4);
  EXPECT_EQ(o.train_iters, 10);
  EXPECT_EQ(o.lr_decay_iters, 7);
  EXPECT_EQ(o.lr_warmup_iters, 2);
  EXPECT_THAT(refusal([&] { resolve_options(parse_train_options(args).options, 64); }),
              AllOf(HasSubstr("--train-samples 85"), HasSubstr("nearest legal value: 128")));
}

TEST(Resolve, BatchesMustDivide) {
  EXPECT_THAT(resolve_refusal({"--global-batch-size", "30"}, 4),
              AllOf(HasSubstr("--global-batch-size 30"), HasSubstr("--micro-batch-size 2 x data size 4 = 8"),
                    HasSubstr("24 or 32")));
  EXPECT_THAT(resolve_refusal({"--global-batch-size", "3"}, 4), HasSubstr("nearest legal --global-batch-size: 8"));
}

// Products of sizes that are legal alone.
TEST(Resolve, MicroBatchesBeyondAnyMemory) {
  TrainOptions options = legal_options();
  options.micro_batch_size = (int64_t{1} << 31) - 1;
  options.seq_length = options.max_position_embeddings = int64_t{1} << 20;
  EXPECT_THAT(refusal([&] { resolve_options(options, 1); }),
              AllOf(HasSubstr("--micro-batch-size 2147483647 x --seq-length 1048576"),
                    HasSubstr("nearest legal --micro-batch-size: ")));
}

TEST(Train, RequiredFlagsAreNamedTogether) {
  EXPECT_THAT(refusal([] { validate_options(TrainOptions{}); }),
              AllOf(HasSubstr("--num-layers is required"), HasSubstr("--hidden-size is required"),
                    HasSubstr("--num-attention-heads is required"), HasSubstr("--seq-length is required"),
                    HasSubstr("--micro-batch-size is required"), HasSubstr("--train-iters"),
                    HasSubstr("--lr is required"), HasSubstr("no data")));
  EXPECT_NO_THROW(validate_options(parse_train_options({"--load-hf", "dir", "--micro-batch-size", "1", "--train-iters",
                                                        "1", "--lr", "1", "--mock-data"})
                                       .options));
}

TEST(Train, LengthAndRate) {
  EXPECT_THAT(resolve_refusal({"--train-samples", "100"}),
              AllOf(HasSubstr("--train-iters 20"), HasSubstr("--train-samples 100")));
  EXPECT_THAT(resolve_refusal({"--min-lr", "0.01"}), AllOf(HasSubstr("--min-lr 0.01"), HasSubstr("--lr 0.001")));
  EXPECT_THAT(resolve_refusal({"--lr-warmup-iters", "20"}), HasSubstr("nearest legal --lr-warmup-iters: 19"));
  EXPECT_THAT(resolve_refusal({"--lr-warmup-samples", "20", "--lr-decay-iters", "10"}),
              AllOf(HasSubstr("--lr-warmup-samples 20"), HasSubstr("--lr-decay-iters 10"),
                    HasSubstr("nearest legal --lr-warmup-samples: 19")));
  EXPECT_NO_THROW(resolve_options(legal_options({"--lr-warmup-samples", "19", "--lr-decay-iters", "10"}), 1));
  EXPECT_THAT(resolve_refusal({"--lr-warmup-fraction", "0.98"}),
              AllOf(HasSubstr("--lr-warmup-fraction 0.98"), HasSubstr("--train-iters 20"),
                    HasSubstr("nearest legal --lr-warmup-fraction: any below 0.975")));
  EXPECT_NO_THROW(resolve_options(legal_options({"--lr-warmup-fraction", "0.974"}), 1));
  EXPECT_THAT(resolve_refusal({"--lr-warmup-init", "0.01"}),
              AllOf(HasSubstr("--lr-warmup-init 0.01 is above --lr 0.001"), HasSubstr("nearest legal value: 0.001")));
  EXPECT_THAT(resolve_refusal({"--global-batch-size", "5000000000"}),
              AllOf(HasSubstr("--global-batch-size 5000000000"), HasSubstr("nearest legal value: 2147483648")));
  EXPECT_THAT(resolve_refusal({"--lr-warmup-iters", "2", "--lr-warmup-fraction", "0.1"}), HasSubstr("more than once"));
  EXPECT_THAT(resolve_refusal({"--lr-decay-iters", "5", "--lr-decay-samples", "9"}), HasSubstr("give one of them"));
  EXPECT_NO_THROW(resolve_options(legal_options({"--lr-decay-style", "constant", "--lr-warmup-iters", "20"}), 1));
}

}  // namespace
}  // namespace ashlar
