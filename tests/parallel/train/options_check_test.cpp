// What follows from the number of ranks, and that a default given is a default left out.
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

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
