#include "runtime/comm/nccl/nccl_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/comm/host/report.h"
#include "runtime/comm/nccl/nccl_lane.h"
#include "runtime/comm/nccl/nccl_watchdog.h"
#include "runtime/comm/wait_reached.h"

namespace ashlar {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

NcclRank::NcclRank(RankContext& host, Device& device, const NcclLibrary& nccl, int version)
    : nccl_(nccl),
      version_(version),
      device_(device),
      device_index_(cuda_stream(*device.create_stream()).device_index()),
      recorder_(host.recorder),
      log_(host.log),
      host_world_(host.world),
      watchdog_(std::make_unique<NcclWatchdog>(*this)) {}

NcclRank::~NcclRank() {
  watchdog_.reset();  // before what it looks at
}

std::shared_ptr<CudaStream> NcclRank::new_stream() {
  const std::shared_ptr<Stream> stream = device_.create_stream(StreamPriority::kCommunication);
  return std::shared_ptr<CudaStream>(stream, &cuda_stream(*stream));
}

std::shared_ptr<CudaStream> NcclRank::collective_stream() {
  if (version_ >= kConcurrentNccl) {
    return new_stream();
  }
  if (shared_stream_ == nullptr) {
    shared_stream_ = new_stream();
  }
  return shared_stream_;
}

void NcclRank::call(const char* name, FunctionRef<ncclResult_t()> call, const ncclComm_t& comm, double timeout_seconds,
                    FunctionRef<std::string(double)> late) {
  try {
    const std::lock_guard lock(calls_mutex_);
    check_job_runs(recorder_);
    finish_call(name, call(), comm, timeout_seconds, late);
  } catch (const Error&) {
    // NCCL may still put the operation on its stream: not while further out its memory is given back.
    wait_for_abort();
    throw;
  }
}

void NcclRank::finish_call(const char* name, ncclResult_t result, const ncclComm_t& comm, double timeout_seconds,
                           FunctionRef<std::string(double)> late) {
  const auto start = Clock::now();
  while (result == ncclInProgress) {
    if (nccl_.async_error(comm, &result) != ncclSuccess || result != ncclInProgress) {
      break;
    }
    check_job_runs(recorder_);
    if (const double waited = seconds_since(start); waited > timeout_seconds) {
      fail(ErrorCode::kTimeout, late(waited));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(seconds_since(start) < 0.01 ? 20 : 500));
  }
  if (result != ncclSuccess) {
    check_job_runs(recorder_);  // the watchdog saw it first, and has said more
    fail(ErrorCode::kCommunication,
         fmt::format("NCCL failed at {}: {}; {}", name, nccl_.error_text(result), nccl_.last_error(comm)));
  }
}

void NcclRank::wait_for_abort() {
  const auto start = Clock::now();
  while (board().job_ended() && !aborted_ && seconds_since(start) < 10) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ncclComm_t& NcclRank::new_comm() {
  return comms_.emplace_back(nullptr);
}

ncclConfig_t NcclRank::config([[maybe_unused]] const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  config.commName = names_.emplace_back(name).c_str();
#endif
  return config;
}

void NcclRank::add_lane(NcclLane& lane) {
  const std::lock_guard lock(lanes_mutex_);
  lanes_.push_back(&lane);
}

void NcclRank::remove_lane(NcclLane& lane) {
  const std::lock_guard lock(lanes_mutex_);
  std::erase(lanes_, &lane);
}

void NcclRank::fail(ErrorCode code, const std::string& text) {
  if (!board().end_job(recorder_.world_rank(), code, text)) {
    check_job_runs(recorder_);
  }
  throw Error(code, text);
}

void NcclRank::abort_lanes() {
  // Whoever is inside a call leaves it soon, since the job has ended; if NCCL itself hangs there, nothing is lost.
  const std::unique_lock lock(calls_mutex_, std::chrono::seconds(5));
  for (NcclLane* lane : lanes_) {
    lane->abort();
  }
  aborted_ = true;
}

namespace {

// The status board shows the ranks of this host: of the others it says nothing.
std::vector<MemberState> members_of(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op) {
  std::vector<MemberState> members;
  for (const int world_rank : group.world_ranks) {
    if (!recorder.board().of(world_rank).present.load()) {
      members.push_back({.visible = false});
      continue;
    }
    const GroupStatus* status = recorder.board().find_group(world_rank, group.id);
    const bool entered = status != nullptr && status->last_issued.load().number >= op.number;
    members.push_back({.entered = entered, .arrived = entered});  // one that has come holds up nobody
  }
  return members;
}

}  // namespace

bool is_missed(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op) {
  const std::vector<MemberState> members = members_of(recorder, group, op);
  return std::any_of(members.begin(), members.end(),
                     [](const MemberState& member) { return member.visible && !member.entered; });
}

std::string late_text(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op, double waited_seconds) {
  return late_collective_text(recorder, group, op, waited_seconds, members_of(recorder, group, op));
}

}  // namespace ashlar
