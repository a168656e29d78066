// One line on the terminal that says how far the input is read.
#pragma once

#include <chrono>
#include <cstdint>

namespace ashlar::prepare {

class Progress {
 public:
  Progress();

  // Writes at most twice a second, and only when stderr is a terminal. `total_bytes` -1: not known.
  void update(int64_t bytes, int64_t total_bytes);
  void clear();
  double elapsed_seconds() const;

 private:
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
  bool terminal_;
  bool shown_ = false;
};

}  // namespace ashlar::prepare
