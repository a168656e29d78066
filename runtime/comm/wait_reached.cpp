#include "runtime/comm/wait_reached.h"

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

[[noreturn]] void fail_late(FlightRecorder& recorder, std::string_view what, double waited_seconds) {
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

void wait_reached(const Event& event, Stream& stream, FlightRecorder& recorder, std::string_view what) {
  constexpr double kYieldSeconds = 1e-3;
  constexpr std::chrono::microseconds kSleep(50);
  if (stream.device().kind() == DeviceKind::kCpu) {
    if (!event.reached()) {
      stream.synchronize();  // work of a CPU stream waits for no other rank, and this throws what failed in it
    }
    return;
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
  check_job_runs(recorder);  // what was aborted on the device has ended too, with anything as its result
}

}  // namespace ashlar
