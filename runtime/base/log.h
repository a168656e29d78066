// Log lines that carry who speaks. One Log per rank, passed by reference: thread ranks have one each.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>

namespace ashlar {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Writes "[2026-08-22 12:00:00.123] [rank 3 t1 p0 d1] [info] text" to stderr. Thread safe.
class Log {
 public:
  // `who` stands in every line, for instance "rank 3" before the grid is known and "rank 3 t1 p0 d1" after.
  explicit Log(std::string who, LogLevel level = LogLevel::kInfo);
  ~Log();

  void set_who(std::string who);

  template <typename... Args>
  void debug(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::kDebug, fmt::format(text, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::kInfo, fmt::format(text, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::kWarning, fmt::format(text, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::kError, fmt::format(text, std::forward<Args>(args)...));
  }
  void write(LogLevel level, std::string_view text) const;

 private:
  struct Sink;
  std::unique_ptr<Sink> sink_;
};

}  // namespace ashlar
