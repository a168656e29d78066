// --memory-limit-gb: who is refused, with which words, and that the change it names is enough and the cheapest.
#include "parallel/train/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "parallel/plan/memory.h"
#include "parallel/train/run_shape_of.h"
#include "runtime/base/error.h"
#include "tests/parallel/train/tiny_run.h"

namespace ashlar {
namespace {

using namespace test;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

int64_t fullest_bytes(const TrainOptions& options) {
  const std::vector<RankMemory> stages = plan_memory(run_shape_of(options, {}));
  int64_t most = 0;
  for (const RankMemory& stage : stages) {
    most = std::max(most, stage.total() + stage.host_total());  // of a CPU
  }
  return most;
}

TrainOptions gpipe_of_four() {
  TrainOptions options = tiny_options();
  options.pipeline_schedule = "gpipe";
  options.micro_batch_size = 4;
  options.global_batch_size = 64;
  return with_grid(options, {1, 2, 1});
}

TrainOptions changed(TrainOptions options, const std::string& schedule, int64_t micro_batch, bool bf16,
                     GridShape grid) {
  options.pipeline_schedule = schedule;
  options.micro_batch_size = micro_batch;
  options.bf16 = bf16;
  return with_grid(options, grid);
}

std::string change_for(const TrainOptions& options, int64_t limit) {
  const auto change = cheapest_fit(options, {}, limit);
  return change ? change->flags : "nothing";
}

TEST(FewMemoryLimit, ProposesTheCheapestChange) {
  const TrainOptions options = gpipe_of_four();
  const int64_t one_f_one_b = fullest_bytes(changed(options, "1f1b", 4, false, {1, 2, 1}));
  const int64_t small = fullest_bytes(changed(options, "1f1b", 1, false, {1, 2, 1}));
  TrainOptions selective = options;
  selective.recompute_granularity = "selective";
  const int64_t smaller = fullest_bytes(changed(selective, "1f1b", 1, false, {1, 2, 1}));
  ASSERT_LT(one_f_one_b, fullest_bytes(options));
  ASSERT_LT(small, one_f_one_b);
  ASSERT_LT(smaller, small);
  EXPECT_EQ(change_for(options, one_f_one_b), "--pipeline-schedule 1f1b");
  EXPECT_EQ(change_for(options, small), "--pipeline-schedule 1f1b --micro-batch-size 1");
  EXPECT_EQ(change_for(options, smaller),
            "--pipeline-schedule 1f1b --recompute-granularity selective --micro-batch-size 1");
  EXPECT_EQ(change_for(options, 1000), "nothing");
  EXPECT_EQ(cheapest_fit(options, {}, small)->bytes, small);
}

// Grids beyond powers of two, where heads or layers divide.
TEST(FewMemoryLimit, SplitsThreeHeadsAmongThreeRanks) {
  TrainOptions options = tiny_options();
  options.hidden_size = 96;
  options.num_attention_heads = 3;
  options.seq_length = 4;
  options = with_grid(options, {1, 1, 1});
  const int64_t of_three = fullest_bytes(with_grid(options, {3, 1, 1}));
  ASSERT_LT(of_three, fullest_bytes(options) / 2);
  const auto change = cheapest_fit(options, {}, of_three);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->flags, "--tensor-model-parallel-size 3 on 3 ranks");
}

// 0.000512984 GB are 512984 bytes, though as a double a little less.
TEST(FewMemoryLimit, IsExactToTheByte) {
  TrainOptions options = tiny_options();
  options.max_position_embeddings = 64;
  for (options.seq_length = 1; options.seq_length <= 40; ++options.seq_length) {
    TrainOptions limited = with_grid(options, {1, 1, 1});
    const int64_t needed = fullest_bytes(limited);
    limited.memory_limit_gb = std::stod(fmt::format("{}e-9", needed));
    EXPECT_NO_THROW(check_memory_limit(limited, {})) << needed;
    limited.memory_limit_gb = std::stod(fmt::format("{}e-9", needed - 1));
    EXPECT_THROW(check_memory_limit(limited, {}), Error) << needed;
  }
}

// One sample at a time, and parameters are most of it: what the data ranks can share out, then the grid.
TEST(FewMemoryLimit, SharesOutAndSplitsFurther) {
  TrainOptions options = tiny_options();
  options.hidden_size = 256;  // much more than the padding of shards
  options.seq_length = 1;
  options.max_position_embeddings = 1;
  options.pipeline_schedule = "gpipe";
  options = with_grid(options, {1, 1, 4});
  TrainOptions shared = options;
  shared.zero_stage = 1;
  const int64_t stage_1 = fullest_bytes(changed(shared, "gpipe", 1, false, {1, 1, 4}));
  ASSERT_LT(stage_1, fullest_bytes(options));
  EXPECT_EQ(change_for(options, stage_1), "--zero-stage 1");
  options.use_distributed_optimizer = true;
  EXPECT_EQ(change_for(options, stage_1), "");  // as it is
  options.use_distributed_optimizer = false;
  EXPECT_THAT(change_for(options, stage_1 / 8), AllOf(HasSubstr("-model-parallel-size"), testing::EndsWith(" ranks")));
}

// A flag that only costs memory is changed or left out, even where it is the user's own.
TEST(MemoryLimit, GivesUpFlagsThatCostMemory) {
  TrainOptions options = tiny_options();
  options.hidden_size = 256;
  options.seq_length = 1;
  options.max_position_embeddings = 1;
  options.zero_stage = 3;
  const auto resolved = [](const TrainOptions& given) { return with_grid(given, {1, 1, 8}); };
  TrainOptions groups = options;
  groups.num_distributed_optimizer_instances = 4;
  TrainOptions narrow = options;
  narrow.bf16 = true;
  TrainOptions wide = narrow;
  narrow.grad_reduce_in_bf16 = true;
  TrainOptions whole = options;
  whole.grad_reduce = "step";
  for (const auto& [given, fits, text] : {std::tuple(groups, options, "--num-distributed-optimizer-instances 1"),
                                          {narrow, wide, "without --grad-reduce-in-bf16"},
                                          {whole, options, "--grad-reduce micro-batch"}}) {
    const int64_t limit = fullest_bytes(resolved(fits));
    ASSERT_LT(limit, fullest_bytes(resolved(given))) << text;
    const auto change = cheapest_fit(resolved(given), {}, limit);
    ASSERT_TRUE(change) << text;
    EXPECT_EQ(change->text(), text);
    EXPECT_EQ(change->bytes, limit) << text;
  }
}

// The flags `given`, with those of `change` in their place, and without `left_out`.
std::string with_flags(const std::string& given, const std::string& change, const std::vector<std::string>& left_out) {
  std::istringstream words(given);
  std::string flags = change;
  bool is_replaced = false;
  for (std::string word; words >> word;) {
    if (word.starts_with("--")) {
      is_replaced = (change + " ").find(word + " ") != std::string::npos || std::ranges::count(left_out, word) > 0;
    }
    flags += is_replaced ? "" : " " + word;
  }
  return flags;
}

struct Proposals {
  int count = 0;
  std::set<std::string> flags, left_out;

  bool has(const std::string& flag) const {
    return std::ranges::any_of(flags, [&](const std::string& at) { return at.find(flag) != std::string::npos; });
  }
};

// Whatever is proposed for these parts of what the flags need, on 8 ranks, fits when it is given in place of the flags
// before, and needs what was said.
void expect_proposals_fit(const std::string& further, const std::vector<double>& parts, Proposals& proposals) {
  const std::string given =
      "--num-layers 8 --num-attention-heads 8 --tokenizer-type NullTokenizer --vocab-size 500 --mock-data "
      "--train-iters 1 --lr 1e-3 " +
      further;
  const auto resolved = [](const std::string& flags, int num_ranks) {
    std::istringstream words(flags);
    return resolve_options(
        parse_train_options({std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()}).options,
        num_ranks);
  };
  const TrainOptions options = resolved(given, 8);
  const int64_t needed = fullest_bytes(options);
  for (const double part : parts) {
    const auto limit = static_cast<int64_t>(part * static_cast<double>(needed));
    const auto change = cheapest_fit(options, {}, limit);
    if (!change) {
      continue;
    }
    ++proposals.count;
    proposals.flags.insert(change->flags);
    proposals.left_out.insert(change->left_out.begin(), change->left_out.end());
    std::string flags = change->flags;
    int num_ranks = 8;
    if (const size_t on = flags.find(" on "); on != std::string::npos) {
      num_ranks = std::stoi(flags.substr(on + 4));
      flags = flags.substr(0, on);
    }
    const int64_t now = fullest_bytes(resolved(with_flags(given, flags, change->left_out), num_ranks));
    EXPECT_LE(now, limit) << given << ": " << change->flags;
    EXPECT_EQ(now, change->bytes) << given << ": " << change->flags;
  }
}

TEST(FewMemoryLimit, FlagsFitWhenGivenAgain) {
  Proposals proposals;
  expect_proposals_fit(
      "--hidden-size 64 --seq-length 32 --micro-batch-size 4 --global-batch-size 64 --recompute-activations",
      {0.7, 0.2}, proposals);
  EXPECT_EQ(proposals.count, 2);
  EXPECT_TRUE(proposals.has("--zero-stage ")) << *proposals.flags.begin();
}

TEST(MemoryLimit, FlagsFitWhenGivenAgain) {
  Proposals proposals;
  for (const std::string shape :
       {"--hidden-size 32 --seq-length 64 --micro-batch-size 8 --global-batch-size 64 --pipeline-schedule gpipe",
        "--hidden-size 128 --seq-length 16 --micro-batch-size 2 --global-batch-size 64",
        "--hidden-size 64 --seq-length 32 --micro-batch-size 6 --global-batch-size 96 --bf16",
        "--hidden-size 64 --seq-length 128 --micro-batch-size 4 --global-batch-size 64 --recompute-granularity "
        "selective",
        "--hidden-size 64 --seq-length 32 --micro-batch-size 4 --global-batch-size 64 --use-distributed-optimizer",
        "--hidden-size 64 --seq-length 32 --micro-batch-size 4 --global-batch-size 64 --optimizer sgd --zero-stage 1",
        "--hidden-size 64 --seq-length 32 --micro-batch-size 4 --global-batch-size 64 --zero-stage 1 "
        "--use-distributed-optimizer --recompute-activations",
        "--hidden-size 64 --seq-length 32 --micro-batch-size 2 --global-batch-size 64 --zero-stage 1 "
        "--data-parallel-sharding-strategy optim --recompute-granularity selective --recompute-modules core_attn"}) {
    for (const char* grid : {"", " --tensor-model-parallel-size 2", " --pipeline-model-parallel-size 2",
                             " --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4"}) {
      expect_proposals_fit(shape + grid, {0.95, 0.7, 0.4, 0.2, 0.05}, proposals);
    }
  }
  EXPECT_GE(proposals.count, 120);
  EXPECT_GE(proposals.flags.size(), 15u);
  // Each kind of change was among them.
  for (const char* flag : {"--pipeline-schedule 1f1b", "--zero-stage 1", "--zero-stage 2", "--zero-stage 3",
                           "--data-parallel-sharding-strategy optim_grads",
                           "--zero-stage 3 --data-parallel-sharding-strategy optim_grads_params", "--sequence-parallel",
                           "--recompute-granularity selective", "--recompute-granularity full", "--micro-batch-size",
                           "--bf16", "--offload-optimizer-device nvme --nvme-path DIR", "--tensor-model-parallel-size",
                           "--pipeline-model-parallel-size", " ranks"}) {
    EXPECT_TRUE(proposals.has(flag)) << flag;
  }
  EXPECT_THAT(proposals.left_out, testing::UnorderedElementsAre("--recompute-activations", "--recompute-modules"));
}

TEST(FewMemoryLimit, RefusesWithTableAndAdvice) {
  TrainOptions options = gpipe_of_four();
  const int64_t needed = fullest_bytes(options);
  options.memory_limit_gb = static_cast<double>(needed) / kBytesOfGb;
  EXPECT_NO_THROW(check_memory_limit(options, {}));
  options.memory_limit_gb = static_cast<double>(needed - 1) / kBytesOfGb;
  try {
    check_memory_limit(options, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("--memory-limit-gb 0.01"), HasSubstr("a rank of stage 1 needs"), HasSubstr("stage 0"),
                      HasSubstr("optimizer state"), HasSubstr("total"), HasSubstr("largest item: activations"),
                      HasSubstr("cheapest change that fits: --pipeline-schedule 1f1b (then ")));
  }
  try {
    check_memory_limit(options, {}, TableIs::kShown);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("largest item: "), Not(HasSubstr("optimizer state"))));
  }
  options.memory_limit_gb = 1e-9;
  EXPECT_THROW(check_memory_limit(options, {}), Error);
}

}  // namespace
}  // namespace ashlar
