#include "runtime/comm/wait_reached.h"

#include <sched.h>

#include <chrono>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/comm/host/status_board.h"

namespace ashlar {

void wait_reached(const Event& event, Stream& stream, FlightRecorder& recorder, std::string_view what) {
  constexpr double kYieldSeconds = 1e-3;
  constexpr std::chrono::microseconds kSleep(50);
  if (event.reached()) {
    return;
  }
  if (stream.device().kind() == DeviceKind::kCpu) {
    stream.synchronize();  // work of a CPU stream waits for no other rank, and this throws what failed in it
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  while (!event.reached()) {
    StatusBoard& board = recorder.board();
    if (board.job_ended()) {
      const std::string reason = board.end_reason();
      throw Error(board.end_code(), fmt::format("stopped because rank {} ended the job ({})", board.ended_by(),
                                                reason.substr(0, reason.find('\n'))));
    }
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (waited > recorder.timeout_seconds()) {
      const std::string text = fmt::format("{} did not come within {:.0f} s; this is {}\n{}", what, waited,
                                           board.stand(recorder.world_rank()), board.table());
      board.end_job(recorder.world_rank(), ErrorCode::kTimeout, text);
      throw Error(ErrorCode::kTimeout, text);
    }
    if (waited < kYieldSeconds) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

}  // namespace ashlar
