#include "runtime/comm/wait.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/comm/host/status_board.h"

namespace ashlar {
namespace {

// A watchdog knows which operation is late and who is missing in it, so it comes first.
constexpr double kAfterWatchdogSeconds = 3;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail_late(FlightRecorder& recorder, const char* what, double waited_seconds) {
  StatusBoard& board = recorder.board();
  const std::string text = fmt::format(
      "rank {} waited {:.1f} s for its device, for {}, and no operation ended (see --distributed-timeout-minutes)\n{}",
      recorder.world_rank(), waited_seconds, what, board.table());
  if (!board.end_job(recorder.world_rank(), ErrorCode::kTimeout, text)) {
    check_job_runs(recorder);
  }
  throw Error(ErrorCode::kTimeout, text);
}

}  // namespace

void check_job_runs(FlightRecorder& recorder) {
  const StatusBoard& board = recorder.board();
  if (!board.job_ended()) {
    return;
  }
  const std::string reason = board.end_reason();
  const std::string who = board.ended_by() == recorder.world_rank() ? std::string("this rank's watchdog")
                                                                    : fmt::format("rank {}", board.ended_by());
  throw Error(board.end_code(), fmt::format("stopped because {} ended the job ({}); this is {}", who,
                                            reason.substr(0, reason.find('\n')), board.stand(recorder.world_rank())));
}

void wait_until_reached(const Event& event, FlightRecorder& recorder, const char* what) {
  // As in waits for peers: short looks, then the core is offered to others, then sleeps.
  constexpr int kLooks = 64;
  constexpr double kYieldSeconds = 1e-3;
  constexpr std::chrono::microseconds kSleep(50);
  for (int look = 0; look < kLooks; ++look) {
    if (event.reached()) {
      return;
    }
  }
  const double start = steady_seconds();
  while (!event.reached()) {
    check_job_runs(recorder);
    const double now = steady_seconds();
    const double waited = now - std::max(start, recorder.last_progress_seconds());
    if (waited > recorder.timeout_seconds() + kAfterWatchdogSeconds) {
      fail_late(recorder, what, waited);
    }
    if (now - start < kYieldSeconds) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

void wait_until_done(Stream& stream, Event& event, FlightRecorder& recorder, const char* what) {
  stream.record(event);
  wait_until_reached(event, recorder, what);
}

}  // namespace ashlar
