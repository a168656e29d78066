#include "parallel/train/config_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "parallel/train/flags.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

constexpr size_t kLargestFile = 1 << 20;  // all flags together are some 10 kB; token files are given by mistake
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string read_text(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  std::string text(kLargestFile + 1, '\0');
  if (file) {
    text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  }
  // A directory can be opened, not read.
  REQUIRE(file && !std::ferror(file.get()), ErrorCode::kUsage, "--config {}: cannot read this file: {}", path,
          std::strerror(errno));
  REQUIRE(text.size() <= kLargestFile, ErrorCode::kUsage,
          "--config {}: cannot read this file: it is larger than {} bytes, so not one of settings", path, kLargestFile);
  if (text.starts_with(kByteOrderMark)) {
    text.erase(0, kByteOrderMark.size());  // toml++ skips it too, but our columns must be its columns
  }
  return text;
}

std::string_view line_of(std::string_view document, size_t line) {
  for (; line > 1 && document.find('\n') != std::string_view::npos; --line) {
    document.remove_prefix(document.find('\n') + 1);
  }
  return line > 1 ? std::string_view() : document.substr(0, document.find_first_of("\r\n"));
}

std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlanks = " \t";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

bool is_number(const Flag& flag) {
  return std::holds_alternative<int TrainOptions::*>(flag.target) ||
         std::holds_alternative<int64_t TrainOptions::*>(flag.target) ||
         std::holds_alternative<double TrainOptions::*>(flag.target) ||
         std::holds_alternative<std::optional<int64_t> TrainOptions::*>(flag.target);
}

// What was probably meant by a line that is no TOML.
std::string syntax_hint(std::string_view line, std::string_view problem) {
  const auto says = [&](std::string_view words) { return problem.find(words) != std::string_view::npos; };
  if (says("redefine")) {
    return "";
  }
  const size_t equals = line.find('=');
  if (equals != std::string_view::npos) {
    const std::string_view key = trimmed(line.substr(0, equals));
    const std::string_view rest = trimmed(line.substr(equals + 1));
    const std::string_view value = trimmed(rest.substr(0, rest.find('#')));
    const Flag* flag = find_flag(key);
    if (rest.starts_with('"') || rest.starts_with('\'')) {
      return says("control characters") || says("end-of-file") ? "; is its closing quote missing?" : "";
    }
    if (flag && flag->is_switch()) {
      return fmt::format("; {} takes true or false", key);
    }
    if (flag && !is_number(*flag) && !value.empty() && value.find_first_of("[]{}\"'\\") == std::string_view::npos) {
      return fmt::format("; text stands in quotes: {} = \"{}\"", key, value);
    }
  }
  return says("could not determine value type") ? "; text stands in quotes" : "";
}

toml::table parse(const std::string& document, const std::string& path) {
  try {
    return toml::parse(std::string_view(document));
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    throw Error(ErrorCode::kUsage, fmt::format("{}:{}:{}: {}{}", path, at.line, at.column, error.description(),
                                               syntax_hint(line_of(document, at.line), error.description())));
  }
}

// toml++ sorts keys by name; the first mistake of the file is the one to name.
std::vector<std::pair<const toml::key*, const toml::node*>> in_order(const toml::table& table) {
  std::vector<std::pair<const toml::key*, const toml::node*>> entries;
  for (const auto& [key, node] : table) {
    entries.emplace_back(&key, &node);
  }
  std::ranges::sort(entries, {}, [](const auto& entry) {
    const toml::source_position at = entry.first->source().begin;
    return std::pair(at.line, at.column);
  });
  return entries;
}

// Of a section, an inline table or an array of tables. Null for other values.
const toml::table* table_of(const toml::node& node) {
  const toml::array* array = node.as_array();
  return array && !array->empty() ? array->front().as_table() : node.as_table();
}

// The first setting below a key: "zero_optimization.stage".
std::string dotted_name(const toml::key& key, const toml::node& node) {
  const toml::table* table = table_of(node);
  const std::string name(key.str());
  if (!table || table->empty()) {
    return name;
  }
  const auto [first, below] = in_order(*table).front();
  return name + "." + dotted_name(*first, *below);
}

class Reader {
 public:
  Reader(const std::string& document, const Flag& flag, std::string source)
      : document_(document), flag_(flag), source_(std::move(source)) {}

  std::vector<std::string> values(const toml::node& node) const {
    const toml::array* array = node.as_array();
    if (!array) {
      return {text_of(node)};
    }
    REQUIRE(!is_checked() || flag_.is_list(), ErrorCode::kUsage, "{} takes {}, got an array", source_,
            flag_.is_switch() ? "true or false" : fmt::format("one value ({})", flag_.value));
    std::vector<std::string> texts;
    for (const toml::node& entry : *array) {
      REQUIRE(!entry.is_array() && !entry.is_table(), ErrorCode::kUsage,
              "{} has {} as an entry; entries are text or numbers", source_, shown(entry));
      texts.push_back(text_of(entry));
    }
    return texts;
  }

 private:
  // Of others the reason why they are not to be had matters more than the kind of their value.
  bool is_checked() const { return flag_.status == FlagStatus::kDone || flag_.status == FlagStatus::kNoEffect; }

  std::string text_of(const toml::node& node) const {
    const bool is_text = std::holds_alternative<std::string TrainOptions::*>(flag_.target);
    if (is_checked()) {
      REQUIRE(!flag_.is_switch() || node.is_boolean(), ErrorCode::kUsage, "{} takes true or false, got {}", source_,
              shown(node));
      REQUIRE(!is_text || node.is_string(), ErrorCode::kUsage, "{} needs text in quotes ({}), got {}", source_,
              flag_.value, shown(node));
      REQUIRE(flag_.is_switch() || !node.is_boolean(), ErrorCode::kUsage, "{} needs a value ({}), got {}", source_,
              flag_.value, shown(node));
    }
    if (const toml::value<std::string>* text = node.as_string()) {
      REQUIRE(text->get().find('\0') == std::string::npos, ErrorCode::kUsage, "{} holds a NUL character (\\u0000)",
              source_);
      return text->get();
    }
    REQUIRE(node.is_number() || node.is_boolean(), ErrorCode::kUsage, "{} needs a value{}, got {}", source_,
            flag_.is_switch() ? "" : fmt::format(" ({})", flag_.value), shown(node));
    return scalar(node);
  }

  std::string scalar(const toml::node& node) const {
    if (const toml::value<int64_t>* whole = node.as_integer()) {
      return fmt::format("{}", whole->get());
    }
    return node.is_boolean() ? (node.as_boolean()->get() ? "true" : "false") : float_text(node.source().begin);
  }

  // As it is written, but for what only TOML knows: a number that is too small is 0 to toml++, and the flag refuses it.
  std::string float_text(toml::source_position at) const {
    std::string_view rest = line_of(document_, at.line);
    for (toml::source_index column = 1; column < at.column; ++column) {  // of characters, not bytes
      const auto is_continued = [&] { return !rest.empty() && (rest.front() & 0xC0) == 0x80; };
      do {
        rest.remove_prefix(std::min<size_t>(rest.size(), 1));
      } while (is_continued());
    }
    std::string text(rest.substr(0, rest.find_first_of(" \t,]}#")));
    std::erase(text, '_');
    return text.starts_with('+') ? text.substr(1) : text;
  }

  std::string shown(const toml::node& node) const {
    if (node.is_string()) {
      return fmt::format("the text \"{}\"", node.as_string()->get());
    }
    if (node.is_number()) {
      return "the number " + scalar(node);
    }
    return node.is_boolean()     ? scalar(node)
           : node.is_date()      ? "a date"
           : node.is_time()      ? "a time"
           : node.is_date_time() ? "a date with a time"
           : node.is_array()     ? "an array"
                                 : "a table";
  }

  const std::string& document_;
  const Flag& flag_;
  std::string source_;
};

}  // namespace

ConfigFile read_config_file(const std::string& path) {
  const std::string document = read_text(path);
  const toml::table table = parse(document, path);
  ConfigFile file;
  for (const auto& [key, node] : in_order(table)) {
    const std::string name(key->str());
    const auto line = static_cast<int>(key->source().begin.line);
    if (table_of(*node)) {
      const std::string dotted = dotted_name(*key, *node);
      const auto own = foreign_name_hint(dotted);
      const auto instead = own ? own : foreign_name_hint(name);
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}:{}: sections, tables and dotted keys ({}) are not used; write name = value{}", path,
                              line, name, instead ? fmt::format("; {}: {}", dotted, *instead) : ""));
    }
    const Flag* flag = find_flag(name);
    if (!flag) {
      unknown_flag(name, fmt::format("key {} in {}:{}", name, path, line));
    }
    REQUIRE(!std::holds_alternative<std::monostate>(flag->target) || flag->status != FlagStatus::kDone,
            ErrorCode::kUsage, "{}:{}: {} is for the command line only", path, line, name);
    file.values[name] = Reader(document, *flag, fmt::format("{} in {}:{}:", name, path, line)).values(*node);
    file.lines[name] = line;
  }
  return file;
}

}  // namespace ashlar
