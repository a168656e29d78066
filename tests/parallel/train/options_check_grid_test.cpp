// Parallel sizes: the world, its stages and their layers, sequence parallelism.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <numeric>

#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(SequenceParallel, NeedsALengthThatTheTensorSizeDivides) {
  const auto resolved = [](int64_t length, bool splits, int tensor_size) {
    TrainOptions options = legal_options();
    options.seq_length = length;
    options.sequence_parallel = splits;
    options.tensor_model_parallel_size = tensor_size;
    return resolve_options(options, tensor_size);
  };
  EXPECT_TRUE(legal_options({"--sequence-parallel"}).sequence_parallel);
  EXPECT_FALSE(legal_options().sequence_parallel);
  EXPECT_NO_THROW(resolved(16, true, 4));
  EXPECT_THAT(refusal([&] { resolved(18, true, 4); }),
              AllOf(HasSubstr("--sequence-parallel"), HasSubstr("--seq-length 18"),
                    HasSubstr("--tensor-model-parallel-size 4"), HasSubstr("nearest legal --seq-length: 16 or 20")));
  EXPECT_NO_THROW(resolved(18, false, 4));
  EXPECT_NO_THROW(resolved(17, true, 1));
}

TEST(SequenceParallel, HasNoEffectOnOneTensorRankAndSaysSo) {
  const auto notes = [](const std::vector<std::string>& more) {
    return fmt::format("{}", fmt::join(parse_train_options(legal_args(more)).notes, "\n"));
  };
  EXPECT_THAT(notes({"--sequence-parallel"}),
              HasSubstr("--sequence-parallel has no use here: --tensor-model-parallel-size is 1"));
  EXPECT_EQ(notes({"--sequence-parallel", "--tensor-model-parallel-size", "2"}), "");
}

TEST(Resolve, WorldSizeMustBeTheGrid) {
  const std::vector<std::string> grid = {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"};
  const std::string six = resolve_refusal(grid, 6);
  EXPECT_THAT(six, AllOf(HasSubstr("the world has 6 ranks"),
                         HasSubstr("--tensor-model-parallel-size 2 x --pipeline-model-parallel-size 2 = 4"),
                         HasSubstr("mpirun -np 4 or mpirun -np 8")));
  EXPECT_THAT(resolve_refusal(grid, 1), AllOf(HasSubstr("the world has 1 rank,"), HasSubstr("mpirun -np 4")));
  std::vector<std::string> dry = grid;
  dry.insert(dry.end(), {"--dry-run", "--world-size", "6"});
  EXPECT_THAT(resolve_refusal(dry, 1), HasSubstr("--world-size 4 or --world-size 8"));
  // Sizes whose product passes 2^31.
  TrainOptions large = legal_options();
  large.num_layers = large.num_attention_heads = large.hidden_size = 100000;
  large.tensor_model_parallel_size = large.pipeline_model_parallel_size = 100000;
  EXPECT_THAT(refusal([&] { resolve_options(large, 8); }), HasSubstr("= 10000000000"));
}

// Case: integer division loses the remainder.
TEST(Layers, NoneIsDropped) {
  EXPECT_THAT(split_layers(6, 4), ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(split_layers(5, 2), ElementsAre(3, 2));
  EXPECT_THAT(split_layers(10, 3), ElementsAre(4, 3, 3));
  EXPECT_THAT(split_layers(30, 4, 6, 6), ElementsAre(6, 9, 9, 6));
  EXPECT_THAT(split_layers(10, 3, 2), ElementsAre(2, 4, 4));
  EXPECT_THAT(split_layers(10, 3, {}, 1), ElementsAre(5, 4, 1));
  EXPECT_THAT(split_layers(10, 2, 7, 3), ElementsAre(7, 3));
  for (int64_t layers = 1; layers <= 40; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      const auto split = split_layers(layers, stages);
      ASSERT_EQ(split.size(), stages);
      EXPECT_EQ(std::accumulate(split.begin(), split.end(), int64_t{0}), layers);
      EXPECT_LE(split.front() - split.back(), 1);
      EXPECT_GE(split.back(), 1);
    }
  }
}

TEST(Layers, EmptyStagesAreRefused) {
  EXPECT_THAT(refusal([] { split_layers(3, 4); }),
              AllOf(HasSubstr("--pipeline-model-parallel-size 4"), HasSubstr("--num-layers 3"), HasSubstr(": 3")));
  EXPECT_THAT(refusal([] { split_layers(8, 4, 4, 3); }),
              AllOf(HasSubstr("--decoder-first-pipeline-num-layers 4"), HasSubstr("at least 2 must be left")));
  EXPECT_THAT(refusal([] { split_layers(8, 2, 4, 3); }), HasSubstr("must add up to --num-layers"));
  EXPECT_THAT(refusal([] { split_layers(8, 1, 4); }), HasSubstr("--pipeline-model-parallel-size of at least 2"));
  EXPECT_THAT(resolve_refusal({"--pipeline-model-parallel-size", "9"}, 9),
              HasSubstr("more stages than --num-layers 8"));
}

// Case: interleaving does not exist yet, so it is refused by its own name before anything starts.
TEST(Layers, InterleavingIsRefusedByName) {
  EXPECT_THAT(parse_refusal({"--num-layers-per-virtual-pipeline-stage", "2"}),
              AllOf(HasSubstr("--num-layers-per-virtual-pipeline-stage 2"), HasSubstr("--pipeline-schedule")));
  EXPECT_THAT(parse_refusal({"--num-virtual-stages-per-pipeline-rank", "2"}), HasSubstr("not supported yet"));
  EXPECT_NO_THROW(legal_options({"--num-virtual-stages-per-pipeline-rank", "1"}));
}

}  // namespace
}  // namespace ashlar
