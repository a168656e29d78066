#include "parallel/train/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

namespace ashlar {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

bool same_value(const std::string& a, const std::string& b) {
  const auto x = parse_real(a), y = parse_real(b);
  return a == b || (x && y && *x == *y);
}

std::string expected_number(const Flag& flag, const char* kind) {
  return flag.range ? fmt::format("{} {}", kind, range_text(*flag.range)) : kind;
}

// Checks the range and says which legal value is nearest; at an open end, on which side of it they are.
void check_range(const Flag& flag, double value, const std::string& text, const std::string& source, const char* kind) {
  if (!flag.range || in_range(*flag.range, value)) {
    return;
  }
  const bool low = value < flag.range->min || (flag.range->min_open && value <= flag.range->min);
  const bool open = low ? flag.range->min_open : flag.range->max_open;
  const std::string nearest = open ? fmt::format("; nearest legal values: those just {} {}", low ? "above" : "below",
                                                 low ? flag.range->min : flag.range->max)
                                   : fmt::format("; nearest legal value: {}", low ? flag.range->min : flag.range->max);
  throw Error(ErrorCode::kUsage,
              fmt::format("{} expects {}, got '{}'{}", source, expected_number(flag, kind), text, nearest));
}

// The most of anything that is counted, where a row names no end: what sizes in bytes are made of fits 64 bits.
constexpr int64_t kLargestCount = int64_t{1} << 40;

int64_t integer_value(const Flag& flag, const std::string& text, const std::string& source, int64_t largest) {
  if (!flag.range || std::isinf(flag.range->max)) {
    largest = std::min(largest, kLargestCount);
  }
  const auto value = parse_integer(text);
  if (!value) {
    std::string nearest;  // of "1e6" and "2.5"
    if (const auto real = parse_real(text); real && std::abs(*real) < static_cast<double>(largest)) {
      check_range(flag, *real, text, source, "a whole number");
      const auto low = static_cast<int64_t>(std::floor(*real)), high = static_cast<int64_t>(std::ceil(*real));
      nearest = low == high ? fmt::format("; nearest legal value: {}", low)
                            : fmt::format("; nearest legal values: {} and {}", low, high);
    }
    throw Error(ErrorCode::kUsage, fmt::format("{} expects {}, got '{}'{}", source,
                                               expected_number(flag, "a whole number"), text, nearest));
  }
  check_range(flag, static_cast<double>(*value), text, source, "a whole number");
  REQUIRE(*value <= largest, ErrorCode::kUsage, "{} expects at most {}, got '{}'; nearest legal value: {}", source,
          largest, text, largest);
  return *value;
}

double real_value(const Flag& flag, const std::string& text, const std::string& source) {
  const auto value = parse_real(text);
  REQUIRE(value, ErrorCode::kUsage, "{} expects {}, got '{}'", source, expected_number(flag, "a number"), text);
  check_range(flag, *value, text, source, "a number");
  return *value;
}

bool switch_value(const std::string& text, const std::string& source) {
  REQUIRE(text == "true" || text == "false", ErrorCode::kUsage,
          "{} is a switch: it takes no value, or true or false; got '{}'", source, text);
  return text == "true";
}

void check_choice(const Flag& flag, const std::string& text, const std::string& source) {
  if (flag.choices.empty() || std::ranges::count(flag.choices, text)) {
    return;
  }
  REQUIRE(!std::ranges::count(flag.later, text), ErrorCode::kUsage, "{} {} is not supported yet; this version has {}",
          source, text, fmt::join(flag.choices, ", "));
  std::string nearest;
  const bool all_numbers =
      std::ranges::all_of(flag.choices, [](auto& choice) { return parse_real(choice).has_value(); });
  if (const auto number = parse_real(text); number && all_numbers) {
    const auto distance = [&](const std::string& choice) { return std::abs(*parse_real(choice) - *number); };
    nearest = fmt::format("; nearest legal value: {}", *std::ranges::min_element(flag.choices, {}, distance));
  } else if (text.size() > 3) {  // from three letters others are too easily made: "gpu" is not "cpu"
    const auto meant = nearest_name(text, flag.choices);
    nearest = meant ? fmt::format("; did you mean {}?", *meant) : "";
  }
  throw Error(ErrorCode::kUsage, fmt::format("{} expects {} of {}; got '{}'{}", source, flag.is_list() ? "some" : "one",
                                             fmt::join(flag.choices, ", "), text, nearest));
}

void check_refused(const Flag& flag, const std::vector<std::string>& values, const std::string& source) {
  if (flag.is_switch() && !switch_value(values.front(), source)) {
    return;
  }
  const auto neutral = [&](const std::string& value) {
    return std::ranges::any_of(flag.neutral, [&](const std::string& n) { return same_value(n, value); });
  };
  if (!flag.is_switch() && std::ranges::all_of(values, neutral)) {
    return;
  }
  const std::string given = flag.is_switch() ? source : fmt::format("{} {}", source, fmt::join(values, " "));
  const std::string accepted =
      flag.neutral.empty() ? "" : fmt::format(" (only {} is accepted)", fmt::join(flag.neutral, ", "));
  throw Error(ErrorCode::kUsage, fmt::format("{} is not supported yet{}: {}", given, accepted, flag.text));
}

void set_option(const Flag& flag, const std::vector<std::string>& values, const std::string& source, TrainOptions& o) {
  const std::string& text = values.front();
  std::visit(Overloaded{[](std::monostate) {}, [&](bool TrainOptions::*m) { o.*m = switch_value(text, source); },
                        [&](int TrainOptions::*m) {
                          o.*m = static_cast<int>(integer_value(flag, text, source, std::numeric_limits<int>::max()));
                        },
                        [&](int64_t TrainOptions::*m) {
                          o.*m = integer_value(flag, text, source, std::numeric_limits<int64_t>::max());
                        },
                        [&](std::optional<int64_t> TrainOptions::*m) {
                          o.*m = integer_value(flag, text, source, std::numeric_limits<int64_t>::max());
                        },
                        [&](double TrainOptions::*m) { o.*m = real_value(flag, text, source); },
                        [&](std::string TrainOptions::*m) {
                          check_choice(flag, text, source);
                          o.*m = text;
                        },
                        [&](std::vector<std::string> TrainOptions::*m) {
                          for (const std::string& value : values) {
                            check_choice(flag, value, source);
                            REQUIRE(flag.choices.empty() || std::ranges::count(values, value) == 1, ErrorCode::kUsage,
                                    "{} has {} more than once: {}; name each once", source, value,
                                    fmt::join(values, " "));
                          }
                          o.*m = values;
                        },
                        [&](const CustomSetting& custom) {
                          check_choice(flag, text, source);
                          if (flag.is_switch()) {
                            switch_value(text, source);
                          }
                          custom.set(o, text, source);
                        }},
             flag.target);
}

}  // namespace

Flag& Flag::within(FlagRange legal) {
  range = legal;
  return *this;
}
Flag& Flag::at_least(double min) {
  return within({.min = min, .max = std::numeric_limits<double>::infinity()});
}
Flag& Flag::above(double min) {
  return within({.min = min, .max = std::numeric_limits<double>::infinity(), .min_open = true});
}
Flag& Flag::one_of(std::vector<std::string> legal, std::vector<std::string> not_yet) {
  choices = std::move(legal);
  later = std::move(not_yet);
  return *this;
}
Flag& Flag::by_default(std::string words) {
  default_words = std::move(words);
  return *this;
}

const std::vector<Flag>& all_flags() {
  static const std::vector<Flag> table = [] {
    std::vector<Flag> flags = done_flags();
    std::vector<Flag> others = other_flags();
    std::ranges::move(others, std::back_inserter(flags));
    return flags;
  }();
  return table;
}

const Flag* find_flag(std::string_view name) {
  const auto found = std::ranges::find(all_flags(), name, &Flag::name);
  return found == all_flags().end() ? nullptr : &*found;
}

std::vector<std::string> flag_names() {
  std::vector<std::string> names;
  for (const Flag& flag : all_flags()) {
    names.push_back(flag.name);
  }
  return names;
}

void apply_flag(const Flag& flag, const std::vector<std::string>& values, const std::string& source,
                TrainOptions& options) {
  const std::string legal =
      flag.is_list() && !flag.choices.empty() ? fmt::format("some of {}", fmt::join(flag.choices, ", ")) : flag.value;
  REQUIRE(!values.empty(), ErrorCode::kUsage, "{} needs a value ({}), got an empty list", source, legal);
  for (const std::string& value : values) {
    REQUIRE(!is_blank(value), ErrorCode::kUsage, "{} needs a value ({}), got {}", source, legal,
            value.empty() ? "an empty one" : fmt::format("a blank one ('{}')", value));
  }
  switch (flag.status) {
    case FlagStatus::kDone:
      set_option(flag, values, source, options);
      break;
    case FlagStatus::kNoEffect:
      break;
    case FlagStatus::kRefused:
      check_refused(flag, values, source);
      break;
    case FlagStatus::kReplaced:
      throw Error(ErrorCode::kUsage, fmt::format("{} no longer exists: {}", source, flag.text));
  }
}

void check_flag_value(const Flag& flag, const std::string& text, const std::string& source) {
  if (flag.range) {
    const auto number = parse_real(text);
    const char* kind = std::holds_alternative<double TrainOptions::*>(flag.target) ? "a number" : "a whole number";
    REQUIRE(number, ErrorCode::kUsage, "{} expects {}, got '{}'", source, expected_number(flag, kind), text);
    check_range(flag, *number, text, source, kind);
  }
  check_choice(flag, text, source);
}

std::string shown_value(const Flag& flag, const TrainOptions& o) {
  const auto show = [&](const TrainOptions& options) {
    return std::visit(
        Overloaded{
            [](std::monostate) { return std::string(); },
            [&](bool TrainOptions::*m) { return std::string(options.*m ? "true" : "false"); },
            [&](std::vector<std::string> TrainOptions::*m) { return fmt::format("{}", fmt::join(options.*m, " ")); },
            [&](std::optional<int64_t> TrainOptions::*m) {
              return options.*m ? fmt::format("{}", *(options.*m)) : std::string();
            },
            [&](const CustomSetting& custom) { return custom.show ? custom.show(options) : std::string(); },
            [&](auto TrainOptions::*m) { return fmt::format("{}", options.*m); }},
        flag.target);
  };
  const std::string shown = show(o);
  // A default in words is a stand-in such as 0, not a value that one could type.
  return !flag.default_words.empty() && shown == show(TrainOptions{}) ? "" : shown;
}

std::string range_text(const FlagRange& range) {
  const std::string low = fmt::format("{} {}", range.min_open ? "above" : "of at least", range.min);
  if (std::isinf(range.max)) {
    return low;
  }
  return fmt::format("{} and {} {}", low, range.max_open ? "below" : "at most", range.max);
}

bool in_range(const FlagRange& range, double value) {
  return (range.min_open ? value > range.min : value >= range.min) &&
         (range.max_open ? value < range.max : value <= range.max);
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace ashlar
