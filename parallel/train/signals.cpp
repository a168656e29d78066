#include "parallel/train/signals.h"

#include <atomic>

namespace ashlar {
namespace {

std::atomic<int> received_signal{0};  // lock-free, so a handler may set it
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int signal) {
  received_signal = signal;
}

void set_handlers(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : kStopSignals) {
    sigaction(signal, &action, nullptr);
  }
}

sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) {
    sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  received_signal = 0;
  for (size_t at = 0; at < kStopSignals.size(); ++at) {
    sigaction(kStopSignals[at], nullptr, &before_[at]);
  }
  set_handlers(remember);
  const sigset_t set = stop_signal_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// The process is on its way out, and has told its peers so: a signal that comes now, as the second of two or because
// this rank is the last to be told, must not spoil the exit code of a run that ended well. SIGKILL ends one that hangs.
StopSignals::~StopSignals() {
  set_handlers(SIG_IGN);
}

// Opens the thread to them whatever it was before: scripts/run_ranks.sh starts ranks that hold USR1 back.
void StopSignals::release() {
  const int signal = received();
  for (size_t at = 0; at < kStopSignals.size(); ++at) {
    sigaction(kStopSignals[at], &before_[at], nullptr);
  }
  const sigset_t set = stop_signal_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  if (signal != 0) {
    std::raise(signal);
  }
}

int StopSignals::received() const {
  const sigset_t set = stop_signal_set();
  const timespec now{};
  for (int signal = sigtimedwait(&set, nullptr, &now); signal > 0; signal = sigtimedwait(&set, nullptr, &now)) {
    received_signal = signal;
  }
  return received_signal;
}

const char* signal_text(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "signal";
  }
}

}  // namespace ashlar
