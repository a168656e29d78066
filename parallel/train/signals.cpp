#include "parallel/train/signals.h"

#include <array>
#include <csignal>

namespace ashlar {
namespace {

constexpr std::array<int, 3> kStopSignals = {SIGTERM, SIGINT, SIGUSR1};
volatile std::sig_atomic_t received_signal = 0;

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

}  // namespace

StopSignals::StopSignals() {
  received_signal = 0;
  set_handlers(remember);
}

StopSignals::~StopSignals() {
  set_handlers(SIG_DFL);
}

int StopSignals::received() const {
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
