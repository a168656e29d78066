#include "runtime/comm/nccl/nccl_watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "runtime/comm/nccl/nccl_lane.h"
#include "runtime/comm/nccl/nccl_rank.h"

namespace ashlar {
namespace {

std::string issued_text(FlightRecorder& recorder, const NcclLane::Oldest& late) {
  const std::optional<OpRecord> record = recorder.find(late.record_slot, late.op.kind, late.op.number);
  if (!record || record->step < 0) {
    return {};
  }
  return fmt::format("; it was issued in step {}, action {}{}", record->step, record->action.data(),
                     record->microbatch < 0 ? "" : fmt::format(", micro-batch {}", record->microbatch));
}

}  // namespace

NcclWatchdog::NcclWatchdog(NcclRank& rank) : rank_(rank), thread_([this] { run(); }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

bool NcclWatchdog::sleep(double seconds) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return stopping_; });
}

void NcclWatchdog::run() {
  constexpr double kLeastSeconds = 0.005;
  constexpr double kMostSeconds = 0.2;
  StatusBoard& board = rank_.board();
  rank_.use_device();  // else CUDA may make this thread a context on GPU 0, hundreds of megabytes for each rank there
  while (sleep(std::clamp(rank_.recorder().timeout_seconds() / 50, kLeastSeconds, kMostSeconds))) {
    if (!board.job_ended()) {
      if (const std::optional<Failure> failure = look(steady_seconds())) {
        if (board.end_job(rank_.recorder().world_rank(), failure->code, failure->text)) {
          rank_.log().error("{}", failure->text);
        }
      }
    }
    if (board.job_ended()) {
      leave();
      return;
    }
  }
}

std::optional<NcclWatchdog::Failure> NcclWatchdog::look(double now) {
  constexpr double kLifeCheckSeconds = 0.5;
  if (now > next_life_check_seconds_) {
    next_life_check_seconds_ = now + kLifeCheckSeconds;
    if (const int dead = rank_.board().find_dead(); dead >= 0) {
      return Failure{ErrorCode::kCommunication,
                     fmt::format("the process of rank {} is gone; it was last seen as {}\n{}", dead,
                                 rank_.board().stand(dead), rank_.board().table())};
    }
  }
  try {
    return look_at_lanes(now);
  } catch (const Error& error) {  // CUDA's: an event tells what failed before it on the device
    return Failure{error.code(), fmt::format("{}\n{}", error.what(), rank_.board().table())};
  }
}

std::optional<NcclWatchdog::Failure> NcclWatchdog::look_at_lanes(double now) {
  const std::lock_guard lock(rank_.lanes_mutex());
  FlightRecorder& recorder = rank_.recorder();
  bool any_started = false;
  for (NcclLane* lane : rank_.lanes()) {
    lane->advance(now);
    const std::optional<NcclLane::Oldest> oldest = lane->oldest(now);
    any_started = any_started || (oldest && oldest->started);
    if (const std::string error = lane->async_error(); !error.empty()) {
      return Failure{ErrorCode::kCommunication,
                     fmt::format("rank {} hears of a failure from NCCL in group \"{}\": {}; {}{}\n{}{}",
                                 recorder.world_rank(), lane->group().name, error,
                                 oldest ? fmt::format("under way there is {}, for {:.1f} s", oldest->op.text(),
                                                      oldest->waited_seconds)
                                        : "nothing is under way there",
                                 oldest ? issued_text(recorder, *oldest) : "", under_way(now), rank_.board().table())};
    }
  }
  const NcclLane* late_lane = nullptr;
  std::optional<NcclLane::Oldest> late;
  for (const NcclLane* lane : rank_.lanes()) {
    std::optional<NcclLane::Oldest> oldest = lane->oldest(now);
    if (!oldest || (!oldest->started && any_started)) {
      continue;  // what the device has not come to waits for what it has
    }
    if (!oldest->started) {
      oldest->waited_seconds = std::min(oldest->waited_seconds, now - recorder.last_progress_seconds());
    }
    // Where all members have come, one of them waits in another operation: whoever waits there knows more, and goes
    // first.
    constexpr double kBehindOthersSeconds = 1;
    const double limit =
        recorder.timeout_seconds() + (is_missed(recorder, lane->group(), oldest->op) ? 0 : kBehindOthersSeconds);
    if (oldest->waited_seconds > limit && (!late || oldest->waited_seconds > late->waited_seconds)) {
      late = oldest;
      late_lane = lane;
    }
  }
  if (!late) {
    return std::nullopt;
  }
  const std::string what = late_text(recorder, late_lane->group(), late->op, late->waited_seconds);
  const size_t first_line = what.find('\n');
  return Failure{ErrorCode::kTimeout,
                 fmt::format("{}{}{}{}\n{}", what.substr(0, first_line), issued_text(recorder, *late),
                             late->started ? "" : "; its device has not come to it, but waits for what is before it",
                             first_line == std::string::npos ? "" : what.substr(first_line), under_way(now))};
}

std::string NcclWatchdog::under_way(double now) const {
  std::string text = fmt::format("under way on the device of rank {}:", rank_.recorder().world_rank());
  bool any = false;
  for (const NcclLane* lane : rank_.lanes()) {
    if (const std::optional<NcclLane::Oldest> oldest = lane->oldest(now)) {
      text += fmt::format("\n  \"{}\": {}, {} for {:.1f} s{}", lane->group().name, oldest->op.text(),
                          oldest->started ? "started" : "not started", oldest->waited_seconds,
                          issued_text(rank_.recorder(), *oldest));
      any = true;
    }
  }
  return any ? text + "\n" : text + " nothing\n";
}

void NcclWatchdog::leave() {
  // In a thread of its own: ncclCommAbort is a known place to hang.
  std::thread aborting([this] {
    const std::lock_guard lock(rank_.lanes_mutex());
    rank_.abort_lanes();
  });
  // The thread that runs the rank leaves by itself, unless it is stuck where nothing can reach it.
  constexpr double kPatienceSeconds = 10;
  const RankStatus& status = rank_.board().of(rank_.recorder().world_rank());
  if (sleep(kPatienceSeconds) && status.pid.load() != 0) {
    const std::string reason = rank_.board().end_reason();
    rank_.log().error("rank {} did not leave within {} s of the end of the job ({})\n{}", rank_.recorder().world_rank(),
                      kPatienceSeconds, reason.substr(0, reason.find('\n')), rank_.recorder().dump(8));
    _exit(exit_code(rank_.board().end_code()));
  }
  aborting.join();
}

}  // namespace ashlar
