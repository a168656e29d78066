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

std::string Error::place_text() const {
  std::string_view file = place_.file_name();
  for (std::string_view top : {"runtime/", "kernels/", "parallel/", "examples/", "tests/"}) {
    if (const size_t at = file.rfind(top); at != std::string_view::npos) {
      file.remove_prefix(at);
      break;
    }
  }
  return fmt::format("{}:{}", file, place_.line());
}

}  // namespace ashlar
