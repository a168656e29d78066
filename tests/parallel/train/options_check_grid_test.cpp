// Parallel sizes: the world, its stages and their layers, sequence parallelism.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <numeric>
#include <sstream>

#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

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
              AllOf(HasSubstr("--decoder-first-pipeline-num-layers 4 and --decoder-last-pipeline-num-layers 3 of "),
                    HasSubstr("the 2 other stages need at least one layer each"),
                    HasSubstr("nearest legal: --decoder-first-pipeline-num-layers 4 and "
                              "--decoder-last-pipeline-num-layers 2")));
  EXPECT_THAT(refusal([] { split_layers(8, 2, 4, 3); }),
              AllOf(HasSubstr("must add up to --num-layers"), HasSubstr("--decoder-last-pipeline-num-layers 4")));
  EXPECT_THAT(refusal([] { split_layers(8, 3, 8); }),
              AllOf(HasSubstr("nearest legal: --decoder-first-pipeline-num-layers 6"), Not(HasSubstr("decoder-last"))));
  EXPECT_THAT(refusal([] { split_layers(8, 2, {}, 9); }), HasSubstr("the other stage needs at least one layer"));
  EXPECT_THAT(refusal([] { split_layers(8, 1, 4); }), HasSubstr("--pipeline-model-parallel-size of at least 2"));
  EXPECT_THAT(resolve_refusal({"--pipeline-model-parallel-size", "9"}, 9),
              HasSubstr("more stages than --num-layers 8"));
}

// What a refused split calls the nearest legal one is legal.
TEST(Layers, NearestLegalSplitsAreLegal) {
  const auto number_behind = [](const std::string& text, const std::string& name) -> std::optional<int64_t> {
    const size_t at = text.find(name, text.find("nearest legal: "));
    return at == std::string::npos ? std::nullopt : std::optional<int64_t>(std::stoll(text.substr(at + name.size())));
  };
  int refused = 0;
  for (int stages = 2; stages <= 5; ++stages) {
    for (int64_t first = 0; first <= 12; ++first) {
      for (int64_t last = 0; last <= 12; ++last) {  // 0: not given
        const auto given = [](int64_t layers) { return layers > 0 ? std::optional(layers) : std::nullopt; };
        try {
          split_layers(8, stages, given(first), given(last));
        } catch (const Error& error) {
          ++refused;
          const auto of_first = number_behind(error.what(), "--decoder-first-pipeline-num-layers ");
          const auto of_last = number_behind(error.what(), "--decoder-last-pipeline-num-layers ");
          EXPECT_EQ(of_first.has_value(), first > 0) << error.what();
          EXPECT_EQ(of_last.has_value(), last > 0) << error.what();
          EXPECT_NO_THROW(split_layers(8, stages, of_first, of_last)) << error.what();
        }
      }
    }
  }
  EXPECT_GT(refused, 300);
}

// What is called a legal number of heads, or a legal tensor size, is one.
TEST(Heads, NearestLegalOnesAreLegal) {
  int refused = 0, proposed = 0;
  for (const int64_t width : {12, 48, 60, 1024}) {
    for (int64_t heads = 1; heads <= 16; ++heads) {
      for (int t = 2; t <= 6; ++t) {
        TrainOptions o = legal_options();
        o.hidden_size = width;
        o.num_attention_heads = heads;
        o.tensor_model_parallel_size = t;
        if (heads % t == 0 || width % heads != 0 || width / heads > 256) {
          continue;
        }
        ++refused;
        const std::string text = refusal([&] { validate_options(o); });
        const std::string line = text.substr(0, text.find('\n'));
        const std::string name = "nearest legal --num-attention-heads: ";
        const size_t at = line.find(name);
        std::istringstream words(at == std::string::npos ? "" : line.substr(at + name.size()));
        for (std::string word; words >> word;) {
          if (word != "or") {
            ++proposed;
            TrainOptions changed = o;
            changed.num_attention_heads = std::stoll(word);
            changed.ffn_hidden_size = 4 * 60;  // which all of these share
            EXPECT_NO_THROW(validate_options(changed)) << text;
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(proposed, 50);
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
