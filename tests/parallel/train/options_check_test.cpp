// What follows from the number of ranks, and that a default given is a default left out.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Case: a value equal to a layer's default is not passed on. Every done flag, both kinds of default: a value, or words
// that stand for a derived value.
TEST(Defaults, GivenExplicitlyAreTheSameAsLeftOut) {
  const std::vector<std::string> data = {"--data-path", "corpus"};
  std::vector<std::string> plain = legal_args();
  std::erase(plain, "--mock-data");
  plain.insert(plain.end(), data.begin(), data.end());
  const TrainOptions base = resolve_options(parse_train_options(plain).options, 4);
  const std::map<std::string, std::string> derived = {{"ffn-hidden-size", "192"},
                                                      {"kv-channels", "4"},
                                                      {"max-position-embeddings", "16"},
                                                      {"vocab-size", "257"},
                                                      {"global-batch-size", "8"},
                                                      {"lr-decay-iters", "20"},
                                                      {"lr-decay-samples", "160"},
                                                      {"lr-warmup-fraction", "0"},
                                                      {"decoder-first-pipeline-num-layers", "8"},
                                                      {"decoder-last-pipeline-num-layers", "8"}};
  int compared = 0;
  for (const Flag& flag : done_flags()) {
    std::string value = flag.is_switch() ? "false" : shown_value(flag, TrainOptions{});
    if (const auto found = derived.find(flag.name); found != derived.end()) {
      value = found->second;
    }
    if (value.empty() || std::holds_alternative<std::monostate>(flag.target)) {
      continue;  // no default, such as --save
    }
    std::vector<std::string> args = plain;
    args.push_back("--" + flag.name + "=" + value);
    TrainOptions given = resolve_options(parse_train_options(args).options, 4);
    // The two uneven-split options keep what was said; what matters is the split.
    EXPECT_EQ(split_layers(8, 1, given.decoder_first_pipeline_num_layers, given.decoder_last_pipeline_num_layers),
              split_layers(8, 1));
    given.decoder_first_pipeline_num_layers.reset();
    given.decoder_last_pipeline_num_layers.reset();
    EXPECT_EQ(options_json(given), options_json(base)) << flag.name << " " << value;
    ++compared;
  }
  EXPECT_GE(compared, 45);
}

// Every done flag reaches the options: another value than the default changes what is dumped.
TEST(Defaults, EveryFlagChangesTheSettings) {
  const nlohmann::json base = options_json(TrainOptions{});
  for (const Flag& flag : done_flags()) {
    if (std::holds_alternative<std::monostate>(flag.target) || flag.name == "openai-gelu") {
      continue;
    }
    TrainOptions options;
    std::string value = "0.5";
    if (flag.is_switch()) {
      value = "true";
    } else if (flag.choices.size() > 1) {
      value = flag.choices[1] == shown_value(flag, options) ? flag.choices[0] : flag.choices[1];
    } else if (flag.value == "N") {
      value = flag.range && flag.range->max < 77 ? "7" : "77";
    } else if (flag.value == "TIME") {
      value = "77s";
    }
    apply_flag(flag, {value}, "--" + flag.name, options);
    const nlohmann::json changed = options_json(options);
    EXPECT_NE(changed[flag.name], base[flag.name]) << flag.name;
    nlohmann::json others = changed;
    others[flag.name] = base[flag.name];
    EXPECT_EQ(others, base) << flag.name << " changed something else too";
  }
}

TEST(Resolve, FillsWhatFollowsFromTheWorld) {
  const TrainOptions o =
      resolve_options(legal_options({"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2",
                                     "--global-batch-size", "24", "--lr-warmup-fraction", "0.1"}),
                      12);
  EXPECT_EQ(o.data_parallel_size, 3);
  EXPECT_EQ(o.num_microbatches, 4);
  EXPECT_EQ(o.ffn_hidden_size, 192);
  EXPECT_EQ(o.kv_channels, 4);
  EXPECT_EQ(o.max_position_embeddings, 16);
  EXPECT_EQ(o.vocab_size, 257);
  EXPECT_EQ(o.lr_decay_iters, 20);
  EXPECT_EQ(o.lr_warmup_iters, 2);
  EXPECT_EQ(o.world_size, 12);
  EXPECT_EQ(resolve_options(legal_options(), 4).global_batch_size, 8);
  EXPECT_EQ(options_json(resolve_options(o, 12)), options_json(o)) << "resolving twice changes nothing";
}

TEST(Resolve, DryRunNeedsNeitherRanksNorData) {
  const ParsedCommand parsed = parse_train_options(
      {"--dry-run", "--world-size", "8", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"});
  EXPECT_EQ(resolve_options(parsed.options, 1).data_parallel_size, 2);
  EXPECT_THAT(resolve_refusal({"--world-size", "8"}), AllOf(HasSubstr("--dry-run"), HasSubstr("mpirun -np 8")));
}

std::vector<std::string> with_value(std::vector<std::string> args, const std::string& flag, const std::string& value) {
  const auto found = std::ranges::find(args, flag);
  if (found == args.end()) {
    args.insert(args.end(), {flag, value});
  } else {
    *(found + 1) = value;
  }
  return args;
}

// A run with one wrong value, and with each of the nearest legal ones that its refusal names.
TEST(NearestLegal, ValuesAreLegal) {
  struct Case {
    std::string flag, value;
    std::vector<std::string> more = {};
    int num_ranks = 1;
  };
  const std::vector<std::string> four{"--tensor-model-parallel-size", "4"};
  const std::vector<std::string> full{"--recompute-granularity", "full", "--recompute-method", "block"};
  const std::vector<Case> cases{
      {"--hidden-size", "50"},
      {"--hidden-size", "6144"},
      {"--num-attention-heads", "6", four, 4},
      {"--ffn-hidden-size", "50", four, 4},
      {"--seq-length", "18", {"--tensor-model-parallel-size", "4", "--sequence-parallel"}, 4},
      {"--seq-length", "18", {"--max-position-embeddings", "16"}},
      {"--vocab-size", "256"},
      {"--kv-channels", "5"},
      {"--pipeline-model-parallel-size", "9", {}, 8},
      {"--decoder-first-pipeline-num-layers", "8", {"--pipeline-model-parallel-size", "2"}, 2},
      {"--decoder-last-pipeline-num-layers", "9", {"--pipeline-model-parallel-size", "4"}, 4},
      {"--decoder-last-pipeline-num-layers", "3"},
      {"--recompute-num-layers", "9", full},
      {"--recompute-num-layers", "2"},
      {"--num-distributed-optimizer-instances", "4", {"--zero-stage", "1"}, 6},
      {"--num-distributed-optimizer-instances", "2", {}, 2},
      {"--zero-stage", "7"},
      {"--global-batch-size", "30", {}, 4},
      {"--global-batch-size", "99999999999"},
      {"--global-batch-size", "1e3"},
      {"--micro-batch-size", "2.5"},
      {"--min-lr", "0.1"},
      {"--lr-warmup-init", "0.1"},
      {"--lr-warmup-iters", "20"},
      {"--lr-warmup-samples", "50"},
      {"--lr-decay-samples", "1"},
      {"--clip-grad", "-1"},
      {"--min-loss-scale", "256", {"--fp16", "--initial-loss-scale", "128"}},
      {"--min-loss-scale", "2", {"--fp16", "--initial-scale-power", "-3"}},
      {"--loss-scale", "1e30", {"--fp16"}},
      {"--test-nan", "rank=0,step=21"},
      {"--test-nan", "rank=0,step=0"},
      {"--test-overflow", "rank=4,step=1", {}, 2}};
  for (const Case& wrong : cases) {
    const std::vector<std::string> args = with_value(legal_args(wrong.more), wrong.flag, wrong.value);
    const auto resolve = [&](const std::vector<std::string>& words) {
      resolve_options(parse_train_options(words).options, wrong.num_ranks);
    };
    const std::string text = refusal([&] { resolve(args); });
    const std::string mark = "nearest legal";
    const size_t at = text.find(mark);
    ASSERT_NE(at, std::string::npos) << wrong.flag << " " << wrong.value << ": " << text;
    std::istringstream words(text.substr(at + mark.size(), text.find_first_of("\n;", at) - at - mark.size()));
    std::string flag = wrong.flag;
    int values = 0;
    for (std::string word; words >> word;) {
      if (word.starts_with("--")) {
        flag = word.substr(0, word.find(':'));
      } else if (const size_t equals = word.find('='); equals != std::string::npos) {  // of a test option
        std::string value = wrong.value;
        const size_t begin = value.find(word.substr(0, equals + 1));
        value.replace(begin, value.find(',', begin) - begin, word);
        EXPECT_NO_THROW(resolve(with_value(args, flag, value))) << text;
        ++values;
      } else if (parse_real(word)) {
        EXPECT_NO_THROW(resolve(with_value(args, flag, word))) << text;
        ++values;
      }
    }
    EXPECT_GE(values, 1) << wrong.flag << " " << wrong.value << ": " << text;
  }
}

TEST(Values, AreCheckedWithoutAParserToo) {
  TrainOptions o = legal_options();
  o.clip_grad = -1;
  o.optimizer = "lion";
  o.adam_beta1 = 1;
  EXPECT_THAT(refusal([&] { validate_options(o); }),
              AllOf(HasSubstr("--clip-grad"), HasSubstr("--optimizer"), HasSubstr("--adam-beta1")));
}

}  // namespace
}  // namespace ashlar
