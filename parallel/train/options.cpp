// From words to TrainOptions: CLI11 splits the command line, the table of flags gives it meaning.
#include "parallel/train/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "parallel/train/config_file.h"
#include "parallel/train/flags.h"
#include "parallel/train/options_parse.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

// Words that no flag claimed. A word after an unknown flag is probably its value, so flags are named first.
void check_extras(const std::vector<std::string>& extras) {
  for (const std::string& word : extras) {
    if (word.starts_with("-") && word.size() > 1) {
      const std::string name =
          word.substr(word.find_first_not_of('-') == std::string::npos ? 0 : word.find_first_not_of('-'));
      unknown_flag(name.substr(0, name.find('=')), fmt::format("flag {}", word.substr(0, word.find('='))));
    }
  }
  for (const std::string& word : extras) {
    const std::string name = word.substr(0, word.find('='));
    if (foreign_name_hint(name)) {
      unknown_flag(name, fmt::format("setting {}", name));
    }
  }
  REQUIRE(extras.empty(), ErrorCode::kUsage,
          "'{}' belongs to no flag: values follow their flag, and only {} take several", extras.front(),
          "flags shown as NAME ... in --help");
}

// One value may be given twice, two values may not. A list's values cannot be told apart, so a list comes once.
void check_repeats(const Flag& flag, const std::vector<std::string>& values, int64_t occurrences,
                   const std::string& source) {
  if (flag.is_list()) {
    REQUIRE(occurrences <= 1, ErrorCode::kUsage, "{} is given {} times; give it once with all its values: {} {}",
            source, occurrences, source, fmt::join(values, " "));
    return;
  }
  for (const std::string& value : values) {
    REQUIRE(value == values.front(), ErrorCode::kUsage, "{} is given with different values: {}", source,
            fmt::join(values, ", "));
  }
}

Values read_command_line(const std::vector<std::string>& args) {
  CLI::App app;
  app.set_help_flag("");
  app.allow_extras();
  std::map<std::string, CLI::Option*> known;
  for (const Flag& flag : all_flags()) {
    const std::string name = flag.name == "help" ? "-h,--help" : "--" + flag.name;
    CLI::Option* option = flag.is_switch() ? app.add_flag(name) : app.add_option(name);
    if (flag.is_list()) {
      option->expected(-1);  // one or more
    }
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    known[flag.name] = option;
  }
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 takes them from the back
  } catch (const CLI::ArgumentMismatch& mismatch) {
    const std::string what = mismatch.what();
    const Flag* flag = find_flag(what.substr(2, what.find_first_of(": ") - 2));
    REQUIRE(flag, ErrorCode::kUsage, "{}", what);
    REQUIRE(!flag->is_switch(), ErrorCode::kUsage, "--{} is a switch and takes no value", flag->name);
    throw Error(ErrorCode::kUsage, fmt::format("--{} needs a value ({})", flag->name, flag->value));
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kUsage, error.what());
  }
  check_extras(app.remaining());
  Values given;
  for (const auto& [name, option] : known) {
    if (option->count() > 0) {
      const std::string dashed = "--" + name;
      const auto occurrences = std::ranges::count_if(
          args, [&](const std::string& word) { return word == dashed || word.starts_with(dashed + "="); });
      for (const std::string& value : option->results()) {
        // CLI11 takes the next word whatever it is.
        REQUIRE(!value.starts_with("--"), ErrorCode::kUsage, "{} needs a value ({}), but {} follows it", dashed,
                find_flag(name)->value, value);
      }
      check_repeats(*find_flag(name), option->results(), occurrences, dashed);
      given[name] = option->results();
    }
  }
  return given;
}

// Within one source neither of the two can win.
void check_activation(const Values& given) {
  const auto activation = given.find("activation"), tanh = given.find("openai-gelu");
  if (activation != given.end() && tanh != given.end()) {
    REQUIRE(tanh->second.front() == "false" || activation->second.front() == "gelu-tanh", ErrorCode::kUsage,
            "--openai-gelu asks for the tanh form and --activation {} for another: give one of them",
            activation->second.front());
  }
}

// What guards the numerics must not be accepted without effect beside what it forbids.
void check_sums_of_gradients(const Values& given) {
  const auto asked = [&](const char* name) { return given.count(name) && given.at(name).front() == "true"; };
  REQUIRE(!asked("accumulate-allreduce-grads-in-fp32") || !asked("grad-reduce-in-bf16"), ErrorCode::kUsage,
          "--accumulate-allreduce-grads-in-fp32 and --grad-reduce-in-bf16 contradict each other: give one of them");
}

}  // namespace

ParsedCommand parse_train_options(const std::vector<std::string>& args) {
  ParsedCommand parsed;
  const Values words = read_command_line(args);
  if (words.count("help")) {
    parsed.print = train_help();
    return parsed;
  }
  if (const auto found = words.find("help-flags"); found != words.end()) {
    const std::string& form = found->second.front();
    REQUIRE(form == "true" || form == "markdown", ErrorCode::kUsage,
            "--help-flags expects nothing or =markdown, got '{}'", form);
    parsed.print = flag_tables(form == "markdown");
    return parsed;
  }
  ConfigFile file;
  std::string path;
  if (const auto found = words.find("config"); found != words.end()) {
    path = found->second.front();
    file = read_config_file(path);
    std::erase_if(file.values, [&](const auto& item) { return words.count(item.first); });
    leave_out_replaced(words, path, file.values, parsed.notes);
  }
  std::set<std::string> given;
  std::vector<std::string> without_effect;
  std::vector<std::string> problems;
  const auto apply = [&](const Flag& flag, const std::vector<std::string>& values, const std::string& source) {
    try {
      apply_flag(flag, values, source, parsed.options);
    } catch (const Error& error) {
      problems.emplace_back(error.what());  // a script of another system has several: all are said at once
      return;
    }
    given.insert(flag.name);
    if (flag.status == FlagStatus::kNoEffect) {
      without_effect.push_back(fmt::format("--{} ({})", flag.name, flag.text));
    }
  };
  // The file first: what the command line says is applied later, and replaces it.
  for (const auto& [name, values] : file.values) {
    apply(*find_flag(name), values, fmt::format("{} in {}:{}:", name, path, file.lines.at(name)));
    parsed.options.files[name] = path;
  }
  for (const auto& [name, values] : words) {
    apply(*find_flag(name), values, "--" + name);
  }
  REQUIRE(problems.empty(), ErrorCode::kUsage, "{}", fmt::join(problems, "\n"));
  try {
    for (const Values& source : {words, file.values}) {
      check_activation(source);
      check_sums_of_gradients(source);
    }
  } catch (const Error& error) {
    throw Error(error.code(), in_users_words(parsed.options, error.what()));
  }
  parsed.given.assign(given.begin(), given.end());
  if (!without_effect.empty()) {
    parsed.notes.push_back(fmt::format("accepted without effect: {}", fmt::join(without_effect, ", ")));
  }
  std::ranges::move(unused_notes(given, parsed.options), std::back_inserter(parsed.notes));
  for (std::string& note : parsed.notes) {
    note = in_users_words(parsed.options, note);
  }
  return parsed;
}

nlohmann::json options_json(const TrainOptions& options) {
  nlohmann::json json = nlohmann::json::object();
  for (const Flag& flag : all_flags()) {
    const bool hidden =
        std::holds_alternative<std::monostate>(flag.target) ||
        (std::holds_alternative<CustomSetting>(flag.target) && std::get<CustomSetting>(flag.target).show == nullptr);
    if (hidden) {
      continue;
    }
    const std::string shown = shown_value(flag, options);
    if (shown.empty()) {
      json[flag.name] = nullptr;
    } else if (flag.is_switch()) {
      json[flag.name] = shown == "true";
    } else if (const auto* list = std::get_if<std::vector<std::string> TrainOptions::*>(&flag.target)) {
      json[flag.name] = options.**list;
    } else if (const auto* real = std::get_if<double TrainOptions::*>(&flag.target)) {
      json[flag.name] = options.**real;
    } else if (std::holds_alternative<std::string TrainOptions::*>(flag.target) ||
               std::holds_alternative<CustomSetting>(flag.target)) {
      json[flag.name] = shown;
    } else {
      json[flag.name] = *parse_integer(shown);
    }
  }
  return json;
}

}  // namespace ashlar
