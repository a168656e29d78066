// Signals that ask for an orderly end: TERM, INT and USR1 on any rank. Every rank tells the others at the next step
// edge.
#pragma once

#include <array>
#include <csignal>

namespace ashlar {

inline constexpr std::array<int, 3> kStopSignals = {SIGTERM, SIGINT, SIGUSR1};

// For the life of the object: the calling thread, and every thread it starts from then on, no longer takes these
// signals; they wait until received() asks. A thread that opens itself to them takes them by a handler that only sets a
// flag, the one place with process-wide state. A handler must not run on a computing thread: oneDNN's generated matrix
// products use the stack pointer for other things, so the kernel would write the signal frame into the heap (seen as
// "corrupted size vs. prev_size" in half of all stops). Make this object first thing in main(): a signal during the
// start waits for the first step, and no rank dies of one inside MPI_Init, where Open MPI 4.1's mpirun hung for good in
// 6 of 40 such ends. Behind its end the signals are ignored.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // For a command that never asks received(): signals, also one that waits already, do what they did before the object.
  void release();

  // The last signal that came in, 0 for none.
  int received() const;

 private:
  std::array<struct sigaction, kStopSignals.size()> before_{};
};

const char* signal_text(int signal);  // "SIGTERM"

}  // namespace ashlar
