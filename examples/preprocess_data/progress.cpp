#include "examples/preprocess_data/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace ashlar::prepare {

Progress::Progress()
    : start_(std::chrono::steady_clock::now()), last_(start_), terminal_(::isatty(STDERR_FILENO) == 1) {}

double Progress::elapsed_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Progress::update(int64_t bytes, int64_t total_bytes) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - last_ < std::chrono::milliseconds(500)) {
    return;
  }
  last_ = now;
  shown_ = true;
  const double done = static_cast<double>(bytes);
  const double rate = done / std::max(elapsed_seconds(), 1e-9);
  std::string rest;
  if (total_bytes > 0) {
    const double total = static_cast<double>(total_bytes);
    rest = fmt::format(", {:.0f} %, {:.0f} s left", 100 * done / total, std::max(0.0, total - done) / rate);
  }
  fmt::print(stderr, "\r\x1b[K{:.1f} MB read, {:.1f} MB/s{}", done / 1e6, rate / 1e6, rest);
  std::fflush(stderr);
}

void Progress::clear() {
  if (shown_) {
    fmt::print(stderr, "\r\x1b[K");
  }
}

}  // namespace ashlar::prepare
