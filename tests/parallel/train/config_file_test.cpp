// What the reader of --config makes of a file: values as the command line would have them, or a refusal that names file
// and line.
#include "parallel/train/config_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;
using Words = std::vector<std::string>;

struct Good {
  std::string text;
  std::string name;
  Words values;
  int line = 1;
};

TEST(ConfigFileValues, AreThoseThatTheFileHas) {
  const std::vector<Good> cases{
      // strings
      {R"(save = "runs/a")", "save", {"runs/a"}},
      {R"(save = 'C:\new')", "save", {R"(C:\new)"}},
      {R"(save = "a\tb \"c\" \\ \u00e9 \U0001F600")", "save", {"a\tb \"c\" \\ \u00e9 \U0001F600"}},
      {R"(save = "no # comment" # but this is one)", "save", {"no # comment"}},
      {"save = \"\"\"\nover \\\n   lines\"\"\"\n", "save", {"over lines"}},
      {"save = '''\na\nb'''\n", "save", {"a\nb"}},
      {R"(save = "")", "save", {""}},
      {R"(split = "969,30,1")", "split", {"969,30,1"}},
      {R"(save = "a = [1, 2]")", "save", {"a = [1, 2]"}},
      {R"("save" = "quoted key")", "save", {"quoted key"}},
      {R"('save'="a")", "save", {"a"}},
      // whole numbers
      {"seed = 42", "seed", {"42"}},
      {"seed = +42", "seed", {"42"}},
      {"seed = -42", "seed", {"-42"}},
      {"seed = 1_000", "seed", {"1000"}},
      {"seed = 0x1F", "seed", {"31"}},
      {"seed = 0o17", "seed", {"15"}},
      {"seed = 0b101", "seed", {"5"}},
      {"seed = 9007199254740993", "seed", {"9007199254740993"}},  // no double is that
      {"seed = 9223372036854775807", "seed", {"9223372036854775807"}},
      {"seed = -9223372036854775808", "seed", {"-9223372036854775808"}},
      {R"(seed = "42")", "seed", {"42"}},
      // other numbers
      {"lr = 1e-4", "lr", {"1e-4"}},
      {"lr = +1E-4", "lr", {"1E-4"}},
      {"lr = 1_0.2_5", "lr", {"10.25"}},
      {"lr = 0.1# comment", "lr", {"0.1"}},
      {"lr = 0.1\t", "lr", {"0.1"}},
      {"lr = 0.1000000000000000055511151231257827", "lr", {"0.1000000000000000055511151231257827"}},
      {"lr = 4.9e-324", "lr", {"4.9e-324"}},
      {"lr = 1e-400", "lr", {"1e-400"}},  // to toml++ it is 0
      {"lr = 1", "lr", {"1"}},
      {"lr = inf", "lr", {"inf"}},
      {"lr = -nan", "lr", {"-nan"}},
      {"num-layers = 4.0", "num-layers", {"4.0"}},
      // switches
      {"mock-data = true", "mock-data", {"true"}},
      {"mock-data = false", "mock-data", {"false"}},
      {"use-flash-attn = true", "use-flash-attn", {"true"}},
      // lists
      {R"(data-path = ["a", "b"])", "data-path", {"a", "b"}},
      {R"(data-path = [0.25, "a", 1e-1, "b"])", "data-path", {"0.25", "a", "1e-1", "b"}},
      {"data-path = [\n  30, 'a', # first\n  70.0,\n  \"b\",\n]\n", "data-path", {"30", "a", "70.0", "b"}},
      {R"(data-path = ["é","日", 0.5, "b"])", "data-path", {"é", "日", "0.5", "b"}},
      {R"(data-path = "a b")", "data-path", {"a b"}},
      {"data-path = []", "data-path", {}},
      {R"(recompute-modules = ["mlp_act", "mlp_act"])", "recompute-modules", {"mlp_act", "mlp_act"}},
      {R"(recompute-modules = ["", " "])", "recompute-modules", {"", " "}},
      // what is refused with its reason later
      {"batch-size = true", "batch-size", {"true"}},
      {"rampup-batch-size = [16, 16, 1000]", "rampup-batch-size", {"16", "16", "1000"}},
      // lines
      {"\xEF\xBB\xBFlr = 0.5\n", "lr", {"0.5"}},
      {"# a\r\n\r\nlr = 0.5\r\nsave = \"a\"\r\n", "lr", {"0.5"}, 3},
      {"\n\n  seed=3", "seed", {"3"}, 3},
  };
  for (const Good& c : cases) {
    SCOPED_TRACE(c.text);
    const TomlFile file(c.text);
    const ConfigFile read = read_config_file(file.path());
    ASSERT_EQ(read.values.count(c.name), 1u);
    EXPECT_EQ(read.values.at(c.name), c.values);
    EXPECT_EQ(read.lines.at(c.name), c.line);
  }
  for (const char* nothing : {"", "\n", "# seed = 3", "\xEF\xBB\xBF"}) {
    EXPECT_TRUE(read_config_file(TomlFile(nothing).path()).values.empty()) << nothing;
  }
}

TEST(ConfigFileValues, RefusalsSayWhereAndWhy) {
  // {} is the file's path.
  const std::vector<std::pair<std::string, std::string>> cases{
      // syntax: line, column and what toml++ says
      {"seed = 3\nlr = 1\nseed = 4\n",
       "{}:3:8: Error while parsing key-value pair: cannot redefine existing integer 'seed'"},
      {"split = '1,1,1'\nsplit = 3\n",
       "{}:2:9: Error while parsing key-value pair: cannot redefine existing string 'split'"},
      {"split = 969,30,1\n",
       "{}:1:12: Error while parsing key-value pair: expected a comment or whitespace, saw ','; text stands in quotes: "
       "split = \"969,30,1\""},
      {"\n device = cpu # here\n",
       "{}:2:11: Error while parsing value: could not determine value type; text stands in quotes: device = \"cpu\""},
      {"\xEF\xBB\xBFsave = /runs/a\r\n",
       "{}:1:8: Error while parsing value: could not determine value type; text stands in quotes: save = \"/runs/a\""},
      {"distributed-timeout-minutes = 45s\n",
       "{}:1:33: Error while parsing decimal integer: expected digit, saw 's'; text stands in quotes: "
       "distributed-timeout-minutes = \"45s\""},
      {"data-path = [a, b]\n",
       "{}:1:14: Error while parsing value: could not determine value type; text stands in quotes"},
      {"data-path = [\n  'a',\n  b,\n]\n",
       "{}:3:3: Error while parsing value: could not determine value type; text stands in quotes"},
      {"data-path = a b\n",
       "{}:1:13: Error while parsing value: could not determine value type; text stands in quotes: data-path = \"a "
       "b\""},
      {"mock-data = True\n",
       "{}:1:13: Error while parsing boolean: expected 'true', saw 'T'; mock-data takes true or false"},
      {"mock-data = yes\n",
       "{}:1:13: Error while parsing value: could not determine value type; mock-data takes true or false"},
      {"save = \"a\nlr = 1\n",
       "{}:1:10: Error while parsing string: unescaped control characters other than TAB (U+0009) are explicitly "
       "prohibited; is its closing quote missing?"},
      {"seed = 010\n", "{}:1:11: Error while parsing decimal integer: leading zeroes are prohibited"},
      {"seed = 1.e3\n", "{}:1:10: Error while parsing floating-point: expected decimal digit, saw 'e'"},
      {"seed = 9223372036854775808\n",
       "{}:1:27: Error while parsing decimal integer: '9223372036854775808' is not representable in 64 bits"},
      {"lr = 1e400\n", "{}:1:11: Error while parsing floating-point: '1e400' could not be interpreted as a value"},
      {"seed: 3\n", "{}:1:5: Error while parsing key-value pair: expected '=', saw ':'"},
      {"seed\n", "{}:1:5: Error while parsing key-value pair: expected '=', saw '\\n'"},
      {"seed = \n", "{}:1:8: Error while parsing key-value pair: expected value, saw '\\n'"},
      {"seed = 3 lr = 1\n", "{}:1:10: Error while parsing key-value pair: expected a comment or whitespace, saw 'l'"},
      {"save = \"a\\q\"\n", "{}:1:11: Error while parsing string: unknown escape sequence '\\q'"},
      {"{\"seed\": 3}",
       "{}:1:1: Error while parsing root table: expected keys, tables, whitespace or comments, saw '{'"},
      {"seed = 3\rlr = 1\r", "{}:1:10: Error while parsing key-value pair: expected '\\n' after '\\r', saw 'l'"},
      {"save = \"\xff\"\n", "{}:1:8: Encountered invalid utf-8 sequence"},
      // NUL, as a byte and as an escape
      {"seed = 1\0\n"s, "{}:1:9: Error while parsing decimal integer: expected digit, saw '\\u0000'"},
      {"save = \"a\0b\"\n"s,
       "{}:1:10: Error while parsing string: unescaped control characters other than TAB (U+0009) are explicitly "
       "prohibited; is its closing quote missing?"},
      {"# \0\n"s,
       "{}:1:3: Error while parsing comment: control characters other than TAB (U+0009) are explicitly prohibited in "
       "comments"},
      {"seed = 1\n\0"s,
       "{}:2:1: Error while parsing root table: expected keys, tables, whitespace or comments, saw '\\u0000'"},
      {"save = \"a\\u0000b\"\n", "save in {}:1: holds a NUL character (\\u0000)"},
      {"data-path = ['a', \"\\u0000\"]\n", "data-path in {}:1: holds a NUL character (\\u0000)"},
      // kinds
      {"seed = [3]\n", "seed in {}:1: takes one value (N), got an array"},
      {"split = [969, 30, 1]\n", "split in {}:1: takes one value (A,B,C), got an array"},
      {"mock-data = [true]\n", "mock-data in {}:1: takes true or false, got an array"},
      {"data-path = ['a', ['b']]\n", "data-path in {}:1: has an array as an entry; entries are text or numbers"},
      {"data-path = ['a', {b = 1}]\n", "data-path in {}:1: has a table as an entry; entries are text or numbers"},
      {"data-path = ['a', true]\n", "data-path in {}:1: needs a value (PATH ...), got true"},
      {"data-path = ['a', 1979-05-27]\n", "data-path in {}:1: needs a value (PATH ...), got a date"},
      {"seed = 1979-05-27\n", "seed in {}:1: needs a value (N), got a date"},
      {"\nseed = 07:32:00\n", "seed in {}:2: needs a value (N), got a time"},
      {"seed = 1979-05-27T07:32:00Z\n", "seed in {}:1: needs a value (N), got a date with a time"},
      {"batch-size = 1979-05-27\n", "batch-size in {}:1: needs a value (N), got a date"},
      {"seed = true\n", "seed in {}:1: needs a value (N), got true"},
      {"save = false\n", "save in {}:1: needs text in quotes (DIR), got false"},
      {"save = 0x10\n", "save in {}:1: needs text in quotes (DIR), got the number 16"},
      {"metrics-file = 1.5\n", "metrics-file in {}:1: needs text in quotes (FILE), got the number 1.5"},
      {"mock-data = \"true\"\n", "mock-data in {}:1: takes true or false, got the text \"true\""},
      {"mock-data = 1\n", "mock-data in {}:1: takes true or false, got the number 1"},
      {"use-flash-attn = 1\n", "use-flash-attn in {}:1: takes true or false, got the number 1"},
      // names; the first mistake of the file counts
      {"seed = 3\nlearning = 1\n[a]\n", "unknown key learning in {}:2; --help lists all flags"},
      {"num_layers = 3\n", "unknown key num_layers in {}:1; did you mean num-layers? --help lists all flags"},
      {"--seed = 3\n", "unknown key --seed in {}:1; did you mean seed? --help lists all flags"},
      {"gradient_clipping = 1\n", "unknown key gradient_clipping in {}:1: use --clip-grad; --help lists all flags"},
      {"help = true\n", "{}:1: help is for the command line only"},
      {"\nconfig = 'other.toml'\n", "{}:2: config is for the command line only"},
      // tables, whatever their form
      {"lr = 1\n[model]\nseed = 3\n",
       "{}:2: sections, tables and dotted keys (model) are not used; write name = value"},
      {"[model]\n", "{}:1: sections, tables and dotted keys (model) are not used; write name = value"},
      {"seed = {}\n", "{}:1: sections, tables and dotted keys (seed) are not used; write name = value"},
      {"[[data-path]]\na = 1\n", "{}:1: sections, tables and dotted keys (data-path) are not used; write name = value"},
      {"zero_optimization = {stage = 3, overlap_comm = true}\n",
       "{}:1: sections, tables and dotted keys (zero_optimization) are not used; write name = value; "
       "zero_optimization.stage: use --zero-stage N"},
      {"[zero_optimization]\noverlap_comm = true\ncontiguous_gradients = true\n",
       "{}:1: sections, tables and dotted keys (zero_optimization) are not used; write name = value; "
       "zero_optimization.overlap_comm: use --overlap-grad-reduce and --overlap-param-gather"},
      {"zero_optimization.offload_optimizer.device = 'cpu'\n",
       "{}:1: sections, tables and dotted keys (zero_optimization) are not used; write name = value; "
       "zero_optimization.offload_optimizer.device: use --zero-stage N"},
  };
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(text);
    const TomlFile file(text);
    std::string message = expected;
    const size_t path_at = expected.find("{}:");
    ASSERT_NE(path_at, std::string::npos);
    message.replace(path_at, 2, file.path());
    EXPECT_EQ(refusal([&] { read_config_file(file.path()); }), message);
  }
}

TEST(ConfigFileValues, WhatCannotBeReadIsNoEmptyFile) {
  const TomlFile file("seed = 3\n");
  const std::filesystem::path scratch = file.path() + ".d", loop = scratch / "loop";
  std::filesystem::create_directories(scratch);
  std::filesystem::create_symlink("loop", loop);
  const auto why = [](const std::string& path) {
    const std::string message = parse_refusal({"--config", path}),
                      start = "--config " + path + ": cannot read this file: ";
    EXPECT_TRUE(message.starts_with(start)) << message;
    return message.substr(std::min(start.size(), message.size()));
  };
  EXPECT_EQ(why(scratch), "Is a directory");
  EXPECT_EQ(why(scratch / "absent"), "No such file or directory");
  EXPECT_EQ(why(file.path() + "/below"), "Not a directory");
  EXPECT_EQ(why(loop), "Too many levels of symbolic links");
  EXPECT_EQ(why("/dev/zero"), "it is larger than 1048576 bytes, so not one of settings");
  std::filesystem::remove_all(scratch);
}

// Through the whole parser: each flag takes what the file says of it, and its own check says what is wrong, where.
TEST(ConfigFileValues, ReachTheFlags) {
  const TomlFile file("\xEF\xBB\xBFseed = 0x10\r\nlr = 1_0.5e-1 # c\r\ndata-path = [0.25,\r\n 'a', 0.75, 'b']\r\n");
  const TrainOptions options = parse_train_options({"--config", file.path()}).options;
  EXPECT_EQ(options.seed, 16);
  EXPECT_EQ(options.lr, 1.05);
  EXPECT_EQ(options.data_path, (Words{"0.25", "a", "0.75", "b"}));
  const auto said = [&](const std::string& text) {
    const TomlFile wrong(text);
    std::string message = refusal([&] { parse_train_options({"--config", wrong.path()}); });
    const size_t at = message.find(wrong.path());
    EXPECT_NE(at, std::string::npos) << text;
    return at == std::string::npos ? message : message.erase(at, wrong.path().size());
  };
  EXPECT_THAT(said("clip-grad = inf\n"), HasSubstr("clip-grad in :1: expects a number of at least 0, got 'inf'"));
  EXPECT_THAT(said("clip-grad = nan\n"), HasSubstr("clip-grad in :1: expects a number of at least 0, got 'nan'"));
  EXPECT_THAT(said("clip-grad = 1e-400\n"), HasSubstr("clip-grad in :1: expects a number of at least 0, got '1e-400'"));
  EXPECT_THAT(said("seed = 2.5\n"), HasSubstr("seed in :1: expects a whole number of at least 0, got '2.5'"));
  EXPECT_THAT(said("\nlog-interval = 4.0\n"), HasSubstr("log-interval in :2: expects a whole number"));
  EXPECT_THAT(said("save = ''\n"), HasSubstr("save in :1: needs a value (DIR), got an empty one"));
  EXPECT_THAT(said("data-path = []\n"), HasSubstr("data-path in :1: needs a value (PATH ...), got an empty list"));
  EXPECT_THAT(said("data-path = ['a', \" \\t\"]\n"),
              HasSubstr("data-path in :1: needs a value (PATH ...), got a blank"));
  EXPECT_THAT(said("recompute-modules = ['mlp_act', 'mlp_act']\n"),
              HasSubstr("recompute-modules in :1: has mlp_act more than once"));
  EXPECT_THAT(said("recompute-modules = 'mlp_actt'\n"), HasSubstr("did you mean mlp_act?"));
  EXPECT_THAT(said("batch-size = 3\n"), HasSubstr("batch-size in :1: no longer exists: use --micro-batch-size"));
  EXPECT_THAT(said("rampup-batch-size = [16, 16, 1000]\n"),
              HasSubstr("rampup-batch-size in :1: 16 16 1000 is not supported"));
}

// The reader knows the kind of every flag: what is no switch takes no boolean, what is a switch takes nothing else, and
// only lists take arrays.
TEST(ConfigFileValues, KindsOfAllFlags) {
  for (const Flag& flag : all_flags()) {
    const bool is_checked = flag.status == FlagStatus::kDone || flag.status == FlagStatus::kNoEffect;
    if (!is_checked || (flag.status == FlagStatus::kDone && std::holds_alternative<std::monostate>(flag.target))) {
      continue;
    }
    const auto is_read = [&](const std::string& value) {
      try {
        read_config_file(TomlFile(flag.name + " = " + value).path());
        return true;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(flag.name + " in "));
        return false;
      }
    };
    EXPECT_EQ(is_read("true"), flag.is_switch()) << flag.name;
    EXPECT_EQ(is_read("'1'"), !flag.is_switch()) << flag.name;
    EXPECT_EQ(is_read("['1']"), flag.is_list()) << flag.name;
    EXPECT_FALSE(is_read("1979-05-27")) << flag.name;
  }
}

}  // namespace
}  // namespace ashlar
