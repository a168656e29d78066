// The TOML file of --config, and the settings as JSON.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
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

class TomlFile {
 public:
  explicit TomlFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / fmt::format("ashlar_options_{}.toml", getpid())) {
    std::ofstream(path_) << text;
  }
  ~TomlFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(ConfigFile, SameNamesAndTheCommandLineWins) {
  const TomlFile file(
      "# a comment\nclip-grad = 0.5\nseed = 9   # another\nsplit = \"8,1,1\"\neod-mask-loss = true\n"
      "data-order = \"sequential\"\ntrain-data-path = [\"a\", \"b\"]\nuse-flash-attn = true\n");
  const ParsedCommand parsed = parse_train_options(legal_args({"--config", file.path(), "--seed", "4"}));
  EXPECT_EQ(parsed.options.clip_grad, 0.5);
  EXPECT_EQ(parsed.options.seed, 4);
  EXPECT_EQ(parsed.options.split, "8,1,1");
  EXPECT_TRUE(parsed.options.eod_mask_loss);
  EXPECT_EQ(parsed.options.data_order, "sequential");
  EXPECT_THAT(parsed.options.train_data_path, testing::ElementsAre("a", "b"));
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("--use-flash-attn")));
  EXPECT_THAT(parsed.given, testing::IsSupersetOf({"clip-grad", "seed", "split"}));
}

std::string file_refusal(const std::string& text) {
  const TomlFile file(text);
  const std::string message = parse_refusal({"--config", file.path()});
  EXPECT_THAT(message, HasSubstr(file.path()));
  return message;
}

TEST(ConfigFile, MistakesNameFileAndKey) {
  EXPECT_THAT(file_refusal("num-layer = 3\n"), HasSubstr("unknown key num-layer in"));
  EXPECT_THAT(file_refusal("num_layers = 3\n"), HasSubstr("did you mean num-layers?"));
  EXPECT_THAT(file_refusal("[zero_optimization]\nstage = 3\n"), HasSubstr("zero_optimization: use --zero-stage N"));
  EXPECT_THAT(file_refusal("zero_optimization.stage = 3\n"), HasSubstr("use --zero-stage N"));
  EXPECT_THAT(file_refusal("gradient_clipping = 1\n"), HasSubstr("use --clip-grad"));
  EXPECT_THAT(file_refusal("seed = abc\n"), HasSubstr("seed in"));
  EXPECT_THAT(file_refusal("clip-grad = -1\n"), HasSubstr("nearest legal value: 0"));
  EXPECT_THAT(file_refusal("swiglu = true\n"), HasSubstr("not supported yet"));
  EXPECT_THAT(file_refusal("batch-size = 3\n"), HasSubstr("--micro-batch-size"));
  EXPECT_THAT(file_refusal("seed = 3\nlog-interval = 1\nseed = 4\n"), HasSubstr("seed stands there twice"));
  EXPECT_THAT(file_refusal("seed = 3\nseed = 4\n"), HasSubstr("seed"));
  EXPECT_THAT(file_refusal("[model]\nseed = 3\n"), HasSubstr("sections"));
  EXPECT_THAT(file_refusal("config = \"other.toml\"\n"), HasSubstr("for the command line only"));
  EXPECT_THAT(file_refusal("openai-gelu = true\nactivation = \"gelu-erf\"\n"), HasSubstr("--openai-gelu"));
  EXPECT_THAT(parse_refusal({"--config", "/nowhere/run.toml"}), HasSubstr("/nowhere/run.toml: cannot read"));
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
