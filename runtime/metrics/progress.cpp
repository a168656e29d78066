#include "runtime/metrics/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace ashlar {
namespace {

constexpr int kBarWidth = 20;
constexpr size_t kLineWidth = 79;  // a wrapped line cannot be redrawn in place
constexpr double kSmoothSteps = 20;

// "1234567" -> "1,234,567".
std::string with_thousands(int64_t value) {
  std::string text = fmt::format("{}", value);
  const std::string::size_type first = value < 0 ? 1 : 0;
  for (std::string::size_type at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

}  // namespace

bool stderr_is_terminal() {
  if (isatty(STDERR_FILENO) != 0) return true;
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return false;
  const int launcher_stderr = open(fmt::format("/proc/{}/fd/2", getppid()).c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (launcher_stderr < 0) return false;
  const bool terminal = isatty(launcher_stderr) != 0;
  close(launcher_stderr);
  return terminal;
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const int64_t s = std::llround(seconds);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02d}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h{:02d}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d{:02d}h", s / 86400, s / 3600 % 24);
}

std::string Progress::text(const StepMetrics& m, double seconds_per_step) {
  const int64_t total = std::max<int64_t>(m.total_steps, 1);
  const int64_t done = std::clamp<int64_t>(m.step, 0, total);
  const size_t filled = static_cast<size_t>(static_cast<double>(done) / static_cast<double>(total) * kBarWidth);
  std::string bar(filled, '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  const std::string tokens = std::isfinite(m.tokens_per_s) && m.tokens_per_s < 1e15
                                 ? with_thousands(std::llround(m.tokens_per_s))
                                 : std::string("?");
  std::string line = fmt::format("[{}] {:>{}}/{}  loss {:.4f}  {} tok/s  {} left", bar, m.step,
                                 fmt::formatted_size("{}", m.total_steps), m.total_steps, m.loss, tokens,
                                 duration_text(static_cast<double>(total - done) * seconds_per_step));
  line.resize(std::min(line.size(), kLineWidth));
  return line;
}

void Progress::update(const StepMetrics& metrics) {
  if (!terminal_) return;
  ++num_updates_;
  // A plain mean at first, a fading one later.
  const double weight = 1.0 / std::min(static_cast<double>(num_updates_), kSmoothSteps);
  seconds_per_step_ += weight * (metrics.step_time_s - seconds_per_step_);
  out_ << '\r' << text(metrics, seconds_per_step_) << "\x1b[K" << std::flush;
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  out_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void Progress::finish() {
  if (!drawn_) return;
  out_ << '\n' << std::flush;
  drawn_ = false;
}

}  // namespace ashlar
