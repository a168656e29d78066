// Signals that ask for an orderly end: TERM, INT and USR1 on any rank. A handler can only set a flag, so this is the
// one place with process-wide state; every rank tells the others at the next step edge.
#pragma once

namespace ashlar {

// Installs the handlers for the life of the object and forgets earlier signals.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The last signal that came in, 0 for none.
  int received() const;
};

const char* signal_text(int signal);  // "SIGTERM"

}  // namespace ashlar
