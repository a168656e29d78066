#include "runtime/base/error.h"

#include <string_view>

namespace ashlar {

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return 2;
    case ErrorCode::kData:
      return 3;
    case ErrorCode::kCheckpoint:
      return 4;
    case ErrorCode::kCommunication:
    case ErrorCode::kTimeout:
      return 5;
    case ErrorCode::kNumerics:
      return 6;
    case ErrorCode::kInternal:
      return 70;
  }
  return 70;
}

Error::Error(ErrorCode code, const std::string& message, std::source_location place)
    : std::runtime_error(message), code_(code), place_(place) {}

// Relative to the source root, which is what comes before this file's own place in the tree.
std::string Error::place_text() const {
  constexpr std::string_view kHere = "runtime/base/error.cpp";
  std::string_view root = std::source_location::current().file_name();
  root.remove_suffix(kHere.size());
  std::string_view file = place_.file_name();
  if (file.starts_with(root)) {
    file.remove_prefix(root.size());
  }
  return fmt::format("{}:{}", file, place_.line());
}

}  // namespace ashlar
