// The table of all flags: one row each, read by the parser, --help, --help-flags, the README's tables and the tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "parallel/train/options.h"

namespace ashlar {

enum class FlagStatus {
  kDone,      // does what it says
  kNoEffect,  // accepted, changes nothing here, said in one line
  kRefused,   // not supported yet: an error, unless the value asks for what happens anyway (`neutral`)
  kReplaced,  // a name Megatron dropped: an error that names its successor
};

enum class FlagGroup { kModel, kGrid, kDevice, kBatch, kOptimizer, kData, kCheckpoints, kOutput, kRun, kTest };

// A setting that is not a plain member: how text becomes it, and how it is shown (null: another flag shows it).
struct CustomSetting {
  void (*set)(TrainOptions&, const std::string& text, const std::string& source);
  std::string (*show)(const TrainOptions&);
};

// Where a flag's value goes. monostate: nowhere, the parser itself acts on it (--help, --config).
using FlagTarget =
    std::variant<std::monostate, bool TrainOptions::*, int TrainOptions::*, int64_t TrainOptions::*,
                 double TrainOptions::*, std::string TrainOptions::*, std::vector<std::string> TrainOptions::*,
                 std::optional<int64_t> TrainOptions::*, CustomSetting>;

struct FlagRange {
  double min = 0, max = 0;
  bool min_open = false, max_open = false;  // the end itself is not legal
};

struct Flag {
  std::string name{};   // without dashes
  std::string value{};  // what follows it, for help: "N", "DIR", "S I N"; "" for a switch
  std::string text{};   // done: meaning and unit; no effect: why; refused and replaced: what to do instead
  FlagStatus status = FlagStatus::kDone;
  FlagGroup group = FlagGroup::kRun;
  FlagTarget target{};
  std::optional<FlagRange> range{};
  std::string default_words{};         // where the default is no value: "required", "none", "4 x hidden size"
  std::vector<std::string> choices{};  // done: the legal values, of a list those of each of its entries
  std::vector<std::string> later{};    // done: values Megatron has and this version does not
  std::vector<std::string> neutral{};  // refused: values that ask for what happens anyway

  bool is_switch() const { return value.empty(); }
  bool is_list() const { return value.ends_with("..."); }  // one value or more

  // How rows are written, in flags_done.cpp.
  Flag& within(FlagRange legal);
  Flag& at_least(double min);
  Flag& above(double min);
  Flag& one_of(std::vector<std::string> legal, std::vector<std::string> not_yet = {});
  Flag& by_default(std::string words);
};

// Pure. Every flag, in the order in which help shows them. (The parts are done_flags() in flags_done.cpp and
// other_flags() in flags_other.cpp.)
const std::vector<Flag>& all_flags();
std::vector<Flag> done_flags();
std::vector<Flag> other_flags();

// A setting that can be given under several names, or in several ways. Names of one way may stand beside each other;
// what the command line says in one way replaces what a --config file says in another.
struct Setting {
  std::string what;
  std::vector<std::vector<std::string>> ways;
};
const std::vector<Setting>& settings_of_many_names();

// What another system calls a setting of ours: its name without dashes, and what to do here.
struct ForeignName {
  std::string name;
  std::string instead;
};
const std::vector<ForeignName>& foreign_names();
// Pure. What to do instead of a name that is no flag ("zero_optimization.stage", "--cpu-offload"); case and '_' against
// '-' do not count, and of a dotted name the last part that is known does.
std::optional<std::string> foreign_name_hint(std::string_view typed);

// Pure. Null when there is no such flag.
const Flag* find_flag(std::string_view name);
std::vector<std::string> flag_names();

// Pure. Sets the option of a done flag from text, or checks the text of any other. `source` is how the user wrote it,
// "--lr" or "lr in run.toml:3:". Throws Error(kUsage).
void apply_flag(const Flag& flag, const std::vector<std::string>& values, const std::string& source,
                TrainOptions& options);

// Pure. Checks the range and the choices of a done flag. Throws Error(kUsage) with the nearest legal value.
void check_flag_value(const Flag& flag, const std::string& text, const std::string& source);

// Pure. The option's value as one would type it ("true" and "false" for switches); empty when no value stands for it.
std::string shown_value(const Flag& flag, const TrainOptions& options);

// Pure. "at least 1", "from 0 up to but without 1".
std::string range_text(const FlagRange& range);
bool in_range(const FlagRange& range, double value);
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_real(std::string_view text);  // finite, '.' as point

}  // namespace ashlar
