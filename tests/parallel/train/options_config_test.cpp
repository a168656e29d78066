// The TOML file of --config, and the settings as JSON.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::Contains;
using testing::HasSubstr;

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// The legal run without its data, for files that bring some.
std::vector<std::string> without_data(const std::vector<std::string>& more) {
  std::vector<std::string> args = legal_args(more);
  std::erase(args, "--mock-data");
  return args;
}

TEST(ConfigFile, SameNamesAndTheCommandLineWins) {
  const TomlFile file(
      "# a comment\nclip-grad = 0.5\nseed = 9   # another\nsplit = \"8,1,1\"\neod-mask-loss = true\n"
      "data-order = \"sequential\"\ntrain-data-path = [\"a\", \"b\"]\nuse-flash-attn = true\n");
  const ParsedCommand parsed = parse_train_options(without_data({"--config", file.path(), "--seed", "4"}));
  EXPECT_EQ(parsed.options.clip_grad, 0.5);
  EXPECT_EQ(parsed.options.seed, 4);
  EXPECT_EQ(parsed.options.split, "8,1,1");
  EXPECT_TRUE(parsed.options.eod_mask_loss);
  EXPECT_EQ(parsed.options.data_order, "sequential");
  EXPECT_THAT(parsed.options.train_data_path, testing::ElementsAre("a", "b"));
  EXPECT_THAT(parsed.notes,
              Contains(AllOf(HasSubstr("use-flash-attn (attention"), HasSubstr("(use-flash-attn: in " + file.path()))));
  EXPECT_THAT(parsed.given, testing::IsSupersetOf({"clip-grad", "seed", "split"}));
}

// What refuses a run with this file, by the parser or the checks. It names the file, and none of its keys as a flag.
std::string file_refusal(const std::string& text, const std::vector<std::string>& args = legal_args(),
                         int num_ranks = 1) {
  const TomlFile file(text);
  std::vector<std::string> all = args;
  all.insert(all.end(), {"--config", file.path()});
  const std::string message = refusal([&] { resolve_options(parse_train_options(all).options, num_ranks); });
  EXPECT_THAT(message, HasSubstr(file.path()));
  return message;
}

TEST(ConfigFile, MistakesNameFileAndKey) {
  EXPECT_THAT(file_refusal("num-layer = 3\n"), HasSubstr("unknown key num-layer in"));
  EXPECT_THAT(file_refusal("num_layers = 3\n"), HasSubstr("did you mean num-layers?"));
  EXPECT_THAT(file_refusal("[zero_optimization]\nstage = 3\n"),
              HasSubstr("zero_optimization.stage: use --zero-stage N"));
  EXPECT_THAT(file_refusal("zero_optimization.stage = 3\n"), HasSubstr("use --zero-stage N"));
  EXPECT_THAT(file_refusal("gradient_clipping = 1\n"), HasSubstr("use --clip-grad"));
  EXPECT_THAT(file_refusal("seed = \"abc\"\n"), HasSubstr(":1: expects a whole number"));
  EXPECT_THAT(file_refusal("clip-grad = -1\n"), HasSubstr("nearest legal value: 0"));
  EXPECT_THAT(file_refusal("swiglu = true\n"), HasSubstr("not supported yet"));
  EXPECT_THAT(file_refusal("batch-size = 3\n"), HasSubstr("--micro-batch-size"));
  EXPECT_THAT(file_refusal("config = \"other.toml\"\n"), HasSubstr("for the command line only"));
  EXPECT_THAT(file_refusal("openai-gelu = true\nactivation = \"gelu-erf\"\n"),
              HasSubstr("openai-gelu asks for the tanh form and activation gelu-erf for another"));
  EXPECT_THAT(file_refusal("distributed-timeout-minutes = \"soon\"\n"), HasSubstr("distributed-timeout-minutes in"));
  EXPECT_THAT(parse_refusal({"--config", "/nowhere/run.toml"}), HasSubstr("/nowhere/run.toml: cannot read"));
}

TEST(ConfigFile, RulesBetweenSettingsNameFileAndKey) {
  const auto wrong = [](const std::string& text, std::vector<std::string> flags, int num_ranks = 1) {
    return file_refusal(text, legal_args(flags), num_ranks);
  };
  EXPECT_THAT(wrong("ffn-hidden-size = 50\n", {"--tensor-model-parallel-size", "4"}, 4),
              AllOf(HasSubstr("ffn-hidden-size 50 cannot be shared by --tensor-model-parallel-size 4; nearest legal "
                              "ffn-hidden-size: 48 or 52 (ffn-hidden-size: in "),
                    Not(HasSubstr("--ffn-hidden-size"))));
  EXPECT_THAT(wrong("optimizer-cpu-offload = true\ndevice = \"cpu\"\n", {}),
              AllOf(HasSubstr("optimizer-cpu-offload has no use with device cpu"),
                    HasSubstr("(device, optimizer-cpu-offload: in ")));
  EXPECT_THAT(wrong("nvme-path = \"d\"\n", {}), HasSubstr("nvme-path d is given"));
  EXPECT_THAT(wrong("offload-optimizer-device = \"nvme\"\n", {"--dry-run"}), HasSubstr("needs --nvme-path DIR"));
  EXPECT_THAT(wrong("global-batch-size = 30\n", {}, 4), HasSubstr("nearest legal global-batch-size: 24 or 32"));
  EXPECT_THAT(wrong("test-nan = \"rank=4,step=1\"\n", {}, 2), HasSubstr("test-nan rank=4,step=1: there is no rank 4"));
  // Two lines of one message, and a setting of each source.
  EXPECT_THAT(wrong("allow-tf32 = true\nmin-lr = 1\n", {"--bf16"}),
              AllOf(HasSubstr("allow-tf32 and --bf16 contradict each other"), HasSubstr("(allow-tf32: in "),
                    HasSubstr("min-lr 1 is above --lr"), HasSubstr("(min-lr: in ")));
}

TEST(ConfigFile, ListsNeedEntries) {
  const std::vector<std::string> args = without_data({});
  for (const Flag& flag : all_flags()) {
    if (flag.is_list()) {
      EXPECT_THAT(file_refusal(flag.name + " = []\n", args), AllOf(HasSubstr(flag.name), HasSubstr("needs a value (")));
      EXPECT_THAT(file_refusal(flag.name + " = [\"a\", \"\"]\n", args), HasSubstr("needs a value ("));
      EXPECT_THAT(file_refusal(flag.name + " = [\"a\", \" \"]\n", args), HasSubstr("needs a value ("));
    }
  }
  EXPECT_THAT(file_refusal("recompute-modules = []\n"), HasSubstr("some of core_attn, layernorm, mlp_act"));
}

// What is dumped can be given back: the settings of a checkpoint start the same run.
TEST(ConfigFile, TakesTheDumpedSettings) {
  const TrainOptions options =
      legal_options({"--clip-grad", "0.3", "--lr", "0.001", "--activation", "gelu-erf", "--distributed-timeout-minutes",
                     "45s", "--save", "dir", "--decoder-first-pipeline-num-layers", "3", "--adam-eps", "1e-9"});
  const nlohmann::json dumped = options_json(options);
  std::string text;
  for (const auto& [key, value] : dumped.items()) {
    if (!value.is_null()) {
      text += key + " = " + value.dump() + "\n";
    }
  }
  const TomlFile file(text);
  EXPECT_EQ(options_json(parse_train_options({"--config", file.path()}).options), options_json(options));
}

TEST(Json, HoldsEverySettingWithItsType) {
  const nlohmann::json json = options_json(legal_options());
  EXPECT_EQ(json["num-layers"], 8);
  EXPECT_EQ(json["lr"], 0.001);
  EXPECT_EQ(json["mock-data"], true);
  EXPECT_EQ(json["optimizer"], "adam");
  EXPECT_EQ(json["ffn-hidden-size"], nullptr);
  EXPECT_EQ(json["lr-warmup-fraction"], nullptr);
  EXPECT_EQ(json["distributed-timeout-minutes"], "10");
  EXPECT_TRUE(json["data-path"].is_null());
  for (const Flag& flag : all_flags()) {
    const bool shown = flag.status == FlagStatus::kDone && flag.name != "openai-gelu" && flag.name != "config" &&
                       flag.name != "help" && flag.name != "help-flags";
    EXPECT_EQ(json.contains(flag.name), shown) << flag.name;
  }
}

}  // namespace
}  // namespace ashlar
