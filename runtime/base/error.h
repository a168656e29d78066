// The one exception type of the runtime, and the two checks that throw it.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace ashlar {

enum class ErrorCode {
  kUsage,          // a flag, a configuration or the way the job was launched
  kData,           // a data file: missing, damaged, foreign, too short
  kCheckpoint,     // a checkpoint: missing, damaged, of another model, not writable; a disk that fails under a run
  kCommunication,  // ranks disagree, or one of them is gone
  kTimeout,        // a wait passed its deadline
  kNumerics,       // loss or gradients are not finite
  kInternal,       // our own logic is wrong
};

// Process exit code of a job that ends with this error: 2 usage, 3 data, 4 checkpoint, 5 communication and timeout,
// 6 numerics, 70 internal.
int exit_code(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::source_location place = std::source_location::current());

  ErrorCode code() const { return code_; }
  const std::source_location& place() const { return place_; }
  std::string place_text() const;  // "runtime/data/token_file.cpp:40"

 private:
  ErrorCode code_;
  std::source_location place_;
};

// Checks users, files and arguments; always on. The message gives scope, the user's own flag or file, what was
// expected, what was found and the nearest legal value.
#define REQUIRE(condition, code, ...)                            \
  do {                                                           \
    if (!(condition)) {                                          \
      throw ::ashlar::Error((code), ::fmt::format(__VA_ARGS__)); \
    }                                                            \
  } while (false)

// Checks our own logic. Always on too: each one is an integer comparison outside of inner loops.
#define DCHECK(condition, ...)                                                                       \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      throw ::ashlar::Error(::ashlar::ErrorCode::kInternal,                                          \
                            "internal check failed: " #condition ": " + ::fmt::format(__VA_ARGS__)); \
    }                                                                                                \
  } while (false)

}  // namespace ashlar
