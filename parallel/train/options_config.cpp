// The TOML file of --config, and what the command line replaces of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "parallel/train/flags.h"
#include "parallel/train/options_parse.h"
#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

namespace ashlar {

[[noreturn]] void unknown_flag(const std::string& name, const std::string& where) {
  if (const auto instead = foreign_name_hint(name)) {
    throw Error(ErrorCode::kUsage, fmt::format("unknown {}: {}; --help lists all flags", where, *instead));
  }
  const auto nearest = nearest_name(name, flag_names());
  throw Error(ErrorCode::kUsage,
              fmt::format("unknown {}{} --help lists all flags", where,
                          nearest ? fmt::format("; did you mean {}{}?", where.starts_with("flag") ? "--" : "", *nearest)
                                  : std::string(";")));
}

Values read_config_file(const std::string& path) {
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_file(path);
  } catch (const CLI::FileError&) {
    throw Error(ErrorCode::kUsage, fmt::format("--config {}: cannot read this file", path));
  }
  Values given;
  for (const CLI::ConfigItem& item : items) {
    if (!item.parents.empty()) {
      // The reader shows a section's head as a key "++".
      const std::string section = fmt::format("{}", fmt::join(item.parents, "."));
      const std::string dotted = item.name == "++" ? section : section + "." + item.name;
      const auto own = foreign_name_hint(dotted);
      const auto instead = own ? own : foreign_name_hint(item.parents.front());
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: sections and dotted keys ({}) are not used; write name = value{}", path,
                              item.parents.front(), instead ? fmt::format("; {}: {}", dotted, *instead) : ""));
    }
    const Flag* flag = find_flag(item.name);
    if (!flag) {
      unknown_flag(item.name, fmt::format("key {} in {}", item.name, path));
    }
    REQUIRE(!std::holds_alternative<std::monostate>(flag->target) || flag->status != FlagStatus::kDone,
            ErrorCode::kUsage, "{}: {} is for the command line only", path, flag->name);
    REQUIRE(given.count(flag->name) == 0, ErrorCode::kUsage, "{}: {} stands there twice", path, flag->name);
    // The reader splits unquoted "969,30,1" at its commas; only lists want that.
    given[flag->name] =
        flag->is_list() ? item.inputs : std::vector<std::string>{fmt::format("{}", fmt::join(item.inputs, ","))};
  }
  return given;
}

void leave_out_replaced(const Values& words, const std::string& path, Values& file, std::vector<std::string>& notes) {
  const auto leave_out = [&](const std::string& name, const std::string& winner) {
    const auto found = file.find(name);
    if (found == file.end()) {
      return;
    }
    const std::vector<std::string>& values = found->second;
    const Flag& flag = *find_flag(name);
    if (values != std::vector<std::string>{flag.is_switch() ? "false" : shown_value(flag, TrainOptions{})}) {
      notes.push_back(fmt::format("{} = {} in {} is left out: the command line has --{}", name, fmt::join(values, " "),
                                  path, winner));
    }
    file.erase(found);
  };
  for (const Setting& setting : settings_of_many_names()) {
    for (const std::vector<std::string>& way : setting.ways) {
      for (const std::string& winner : way) {
        const auto word = words.find(winner);
        if (word == words.end() || (find_flag(winner)->is_switch() && word->second.front() == "false")) {
          continue;
        }
        for (const std::vector<std::string>& other : setting.ways) {
          for (const std::string& name : other) {
            if (!std::ranges::count(way, name) && !words.count(name)) {
              leave_out(name, winner);
            }
          }
        }
      }
    }
  }
}

}  // namespace ashlar
