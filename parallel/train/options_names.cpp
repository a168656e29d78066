// Names that are no flags, and what the command line replaces of a --config file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

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

namespace {

// Names of a setting in other ways than this one.
std::vector<std::string> names_beside(const Setting& setting, const std::vector<std::string>& way) {
  std::vector<std::string> names;
  for (const std::vector<std::string>& other : setting.ways) {
    std::ranges::copy_if(other, std::back_inserter(names),
                         [&](const std::string& name) { return !std::ranges::count(way, name); });
  }
  return names;
}

}  // namespace

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
  const auto wins = [&](const std::string& name) {
    const auto word = words.find(name);
    return word != words.end() && !(find_flag(name)->is_switch() && word->second.front() == "false");
  };
  for (const Setting& setting : settings_of_many_names()) {
    for (const std::vector<std::string>& way : setting.ways) {
      const auto winner = std::ranges::find_if(way, wins);
      if (winner == way.end()) {
        continue;
      }
      for (const std::string& name : names_beside(setting, way)) {
        leave_out(name, *winner);
      }
    }
  }
}

}  // namespace ashlar
