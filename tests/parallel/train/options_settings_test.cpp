// Settings with several names: the command line wins under each of them, and contradictions name what the user wrote.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// A value of each name that asks for something.
const std::map<std::string, std::string>& values() {
  static const std::map<std::string, std::string> all{{"zero-stage", "2"},
                                                      {"data-parallel-sharding-strategy", "optim"},
                                                      {"use-distributed-optimizer", "true"},
                                                      {"use-megatron-fsdp", "true"},
                                                      {"offload-optimizer-device", "nvme"},
                                                      {"optimizer-cpu-offload", "true"},
                                                      {"recompute-granularity", "full"},
                                                      {"recompute-activations", "true"},
                                                      {"recompute-method", "uniform"},
                                                      {"recompute-num-layers", "2"},
                                                      {"recompute-modules", "mlp_act"},
                                                      {"bf16", "true"},
                                                      {"fp16", "true"},
                                                      {"loss-scale", "128"},
                                                      {"initial-loss-scale", "256"},
                                                      {"initial-scale-power", "9"},
                                                      {"min-loss-scale", "2"},
                                                      {"loss-scale-window", "10"},
                                                      {"hysteresis", "3"},
                                                      {"grad-reduce-in-bf16", "true"},
                                                      {"accumulate-allreduce-grads-in-fp32", "true"},
                                                      {"activation", "gelu-erf"},
                                                      {"openai-gelu", "true"},
                                                      {"train-iters", "30"},
                                                      {"train-samples", "60"},
                                                      {"lr-decay-iters", "20"},
                                                      {"lr-decay-samples", "40"},
                                                      {"lr-warmup-iters", "2"},
                                                      {"lr-warmup-samples", "4"},
                                                      {"lr-warmup-fraction", "0.1"},
                                                      {"data-path", "a"},
                                                      {"train-data-path", "b"},
                                                      {"valid-data-path", "c"},
                                                      {"mock-data", "true"}};
  return all;
}

std::string as_word(const std::string& name, const std::string& value) {
  return "--" + name + "=" + value;
}

std::string as_line(const std::string& name, const std::string& value) {
  const Flag& flag = *find_flag(name);
  const std::string quoted = "\"" + value + "\"";
  return name + " = " + (flag.is_switch() ? value : flag.is_list() ? "[" + quoted + "]" : quoted) + "\n";
}

// Calls with the names of two ways of a setting, both ways round.
void for_pairs(const std::function<void(const Setting&, const std::string&, const std::string&)>& call) {
  for (const Setting& setting : settings_of_many_names()) {
    for (const auto& way : setting.ways) {
      for (const auto& other : setting.ways) {
        for (size_t at = 0; &way != &other && at < way.size() * other.size(); ++at) {
          call(setting, way[at / other.size()], other[at % other.size()]);
        }
      }
    }
  }
}

TEST(Settings, TheCommandLineWinsUnderEveryName) {
  int pairs = 0;
  for_pairs([&](const Setting& setting, const std::string& in_file, const std::string& word) {
    SCOPED_TRACE(setting.what + ": " + in_file + ", --" + word);
    ++pairs;
    const TomlFile file(as_line(in_file, values().at(in_file)));
    const std::string arg = as_word(word, values().at(word));
    const ParsedCommand both = parse_train_options({"--config", file.path(), arg});
    const ParsedCommand alone = parse_train_options({arg});
    EXPECT_EQ(options_json(both.options), options_json(alone.options));
    EXPECT_THAT(both.given, Not(Contains(in_file)));
    EXPECT_THAT(both.notes, Contains(in_file + " = " + values().at(in_file) + " in " + file.path() +
                                     " is left out: the command line has --" + word));
    EXPECT_TRUE(both.options.files.empty());
  });
  EXPECT_GE(pairs, 60);
}

// The same name, and what asks for nothing, need no word.
TEST(Settings, OnlyWhatIsLostIsSaid) {
  const TomlFile file(
      "zero-stage = 2\nbf16 = true\nuse-distributed-optimizer = false\nlr-warmup-iters = 0\nfp16 = false\n");
  const ParsedCommand parsed = parse_train_options(
      {"--config", file.path(), "--zero-stage", "1", "--lr-warmup-fraction", "0.1", "--use-megatron-fsdp=false"});
  EXPECT_TRUE(parsed.notes.empty());
  EXPECT_EQ(parsed.options.zero_stage, 1);
  EXPECT_TRUE(parsed.options.bf16);
}

// A switch that is switched off says nothing of the other names.
TEST(Settings, AnOffSwitchLeavesTheFileAlone) {
  for_pairs([&](const Setting& setting, const std::string& in_file, const std::string& word) {
    if (!find_flag(word)->is_switch()) {
      return;
    }
    SCOPED_TRACE(setting.what + ": " + in_file + ", --" + word);
    const TomlFile file(as_line(in_file, values().at(in_file)));
    const ParsedCommand parsed = parse_train_options({"--config", file.path(), as_word(word, "false")});
    EXPECT_EQ(parsed.options.files.count(in_file), 1u);
  });
}

// What is legal together: Megatron's scripts give them beside each other.
bool fit(const std::string& a, const std::string& b) {
  const std::set<std::set<std::string>> legal{
      {"data-parallel-sharding-strategy", "use-distributed-optimizer"},
      {"data-parallel-sharding-strategy", "use-megatron-fsdp"},
      {"zero-stage", "use-distributed-optimizer"},
      {"zero-stage", "use-megatron-fsdp"},
      {"use-distributed-optimizer", "use-megatron-fsdp"},
  };
  return legal.contains({a, b});
}

std::string refusal_of(std::vector<std::string> args, const Setting& setting) {
  for (const auto& [name, words] :
       std::map<std::string, std::vector<std::string>>{{"num-layers", {"--num-layers", "8"}},
                                                       {"hidden-size", {"--hidden-size", "48"}},
                                                       {"heads", {"--num-attention-heads", "12"}},
                                                       {"length", {"--seq-length", "16"}},
                                                       {"batch", {"--micro-batch-size", "2"}},
                                                       {"lr", {"--lr", "0.001"}},
                                                       {"train-iters", {"--train-iters", "50"}},
                                                       {"mock-data", {"--mock-data"}},
                                                       {"fp16", {"--fp16"}}}) {
    const auto belongs = [&](const auto& way) { return std::ranges::count(way, name) > 0; };
    const bool needs_fp16 = setting.what.find("loss scale") != std::string::npos;
    if (std::ranges::none_of(setting.ways, belongs) && (name != "fp16" || needs_fp16)) {
      args.insert(args.end(), words.begin(), words.end());
    }
  }
  return refusal([&] { resolve_options(parse_train_options(args).options, 1); });
}

TEST(Settings, ContradictionsNameBothNamesAsTheyWereWritten) {
  int pairs = 0;
  for_pairs([&](const Setting& setting, const std::string& a, const std::string& b) {
    if (fit(a, b)) {
      return;
    }
    SCOPED_TRACE(setting.what + ": " + a + ", " + b);
    ++pairs;
    const std::string words = refusal_of({as_word(a, values().at(a)), as_word(b, values().at(b))}, setting);
    EXPECT_THAT(words, AllOf(HasSubstr("--" + a), HasSubstr("--" + b)));
    const TomlFile file(as_line(a, values().at(a)) + as_line(b, values().at(b)));
    const std::string lines = refusal_of({"--config", file.path()}, setting);
    EXPECT_THAT(lines, AllOf(HasSubstr(a), HasSubstr(b), HasSubstr(": in " + file.path() + ")")));
    EXPECT_THAT(
        lines, AllOf(Not(HasSubstr("--" + a + " " + values().at(a))), Not(HasSubstr("--" + b + " " + values().at(b)))));
  });
  EXPECT_GE(pairs, 50);
}

// The names of one stage that fit each other do not where they say different things.
TEST(Settings, StagesThatDifferContradictInAFileToo) {
  for (const std::string other : {"use-distributed-optimizer = true", "use-megatron-fsdp = true",
                                  "data-parallel-sharding-strategy = \"optim\""}) {
    const TomlFile file("zero-stage = 0\n" + other + "\n");
    EXPECT_THAT(
        resolve_refusal({"--config", file.path()}),
        AllOf(HasSubstr("zero-stage 0 and " + other.substr(0, other.find(' '))), HasSubstr("contradict each other"),
              HasSubstr(", zero-stage: in " + file.path() + ")"), Not(HasSubstr("--zero-stage 0"))));
  }
}

// A row that calls itself another name of something is one.
TEST(Settings, TableHoldsWhatHelpCallsTheSame) {
  std::set<std::string> names;
  for (const Setting& setting : settings_of_many_names()) {
    EXPECT_GE(setting.ways.size(), 2u) << setting.what;
    for (const auto& way : setting.ways) {
      names.insert(way.begin(), way.end());
    }
  }
  for (const std::string& name : names) {
    EXPECT_NE(find_flag(name), nullptr) << name;
    EXPECT_TRUE(values().contains(name)) << name;
  }
  int seen = 0;
  for (const Flag& flag : done_flags()) {
    if (flag.text.starts_with("the same") || flag.text.starts_with("as --") ||
        flag.text.find(", as --") != std::string::npos || flag.text.find(": as --") != std::string::npos) {
      ++seen;
      EXPECT_TRUE(names.contains(flag.name)) << flag.name << ": " << flag.text;
    }
  }
  EXPECT_GE(seen, 10);
}

TEST(Words, OfAFileAreNoFlags) {
  TrainOptions options;
  options.files = {{"lr", "run.toml"}, {"hidden-size", "m/config.json"}, {"min-lr", "run.toml"}};
  EXPECT_EQ(in_users_words(options, "--lr 1 is --lr-x, --min-lr and x--lr\n--seed 4"),
            "lr 1 is --lr-x, min-lr and x--lr (lr, min-lr: in run.toml)\n--seed 4");
  EXPECT_EQ(in_users_words(options, "--hidden-size 4 (--lr=2)\n"),
            "hidden-size 4 (lr=2) (hidden-size: in m/config.json) (lr: in run.toml)\n");
  const std::string once = in_users_words(options, "--lr 1");
  EXPECT_EQ(in_users_words(options, once), once);
  EXPECT_EQ(in_users_words({}, "--lr 1\n\n"), "--lr 1\n\n");
}

}  // namespace
}  // namespace ashlar
