// One line that is redrawn in place while a person watches:
//   [==========>         ]  120/500  loss 2.3456  12,345 tok/s  1m05s left
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "runtime/metrics/metrics.h"

namespace ashlar {

// True when a person sees what this process writes to stderr: it is a terminal, or it is the pipe of an mpirun on this
// machine whose own stderr is one (mpirun gives its ranks pipes).
bool stderr_is_terminal();

class Progress {
 public:
  // Writes to `out` only when `terminal`; usually Progress(std::cerr, stderr_is_terminal()) on one rank.
  Progress(std::ostream& out, bool terminal) : out_(out), terminal_(terminal) {}
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Redraws the line.
  void update(const StepMetrics& metrics);
  // Erases the line, so that other text can be written; the next update draws it again.
  void clear();
  // Leaves the last line standing and goes to the next one.
  void finish();

  // Pure. The text of the line, at most 79 characters, without control characters.
  static std::string text(const StepMetrics& metrics, double seconds_per_step);

 private:
  std::ostream& out_;
  bool terminal_;
  bool drawn_ = false;
  double seconds_per_step_ = 0;  // mean over about the last 20 steps, so that the time remaining does not jump
  int64_t num_updates_ = 0;
};

// Pure. "59s", "1m05s", "2h03m", "4d05h"; "?" for what is not a time.
std::string duration_text(double seconds);

}  // namespace ashlar
