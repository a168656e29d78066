// What all NCCL communicators of a rank share: the library, the device, one lock around its calls, and the lanes that
// the watchdog looks at.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/comm/host/host_rank.h"
#include "runtime/comm/launch.h"
#include "runtime/comm/nccl/function_ref.h"
#include "runtime/comm/nccl/nccl_library.h"
#include "runtime/device/cuda/cuda_stream.h"

namespace ashlar {

class NcclLane;
class NcclWatchdog;

class NcclRank {
 public:
  NcclRank(RankContext& host, Device& device, const NcclLibrary& nccl, int version);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  const NcclLibrary& nccl() const { return nccl_; }
  Device& device() { return device_; }
  FlightRecorder& recorder() { return recorder_; }
  StatusBoard& board() { return recorder_.board(); }
  Log& log() { return log_; }
  Communicator& host_world() { return host_world_; }

  // The stream of a new lane of collectives: one of its own, or before 2.26 the same for all.
  std::shared_ptr<CudaStream> collective_stream();
  std::shared_ptr<CudaStream> new_stream();

  // Makes one call of NCCL, alone: `call` returns NCCL's result. While the communicator (null: none yet) is then
  // ncclInProgress, waits: Blocks the host, until the deadline, where late(seconds waited) says what to report. Throws
  // when the job was ended.
  void call(const char* name, FunctionRef<ncclResult_t()> call, const ncclComm_t& comm, double timeout_seconds,
            FunctionRef<std::string(double)> late);

  // A config for a communicator of that name. NCCL keeps the pointer to the name as long as the communicator, so this
  // keeps the text.
  ncclConfig_t config(const std::string& name);
  // A place, null at first, where NCCL may put a communicator. It stays as long as this does: after a time-out NCCL's
  // own thread may still write there.
  ncclComm_t& new_comm();

  // Makes the GPU the calling thread's current one.
  void use_device() const { use_cuda_device(device_index_); }

  void add_lane(NcclLane& lane);
  void remove_lane(NcclLane& lane);  // the watchdog is done with it when this returns
  std::mutex& lanes_mutex() { return lanes_mutex_; }
  const std::vector<NcclLane*>& lanes() const { return lanes_; }  // under lanes_mutex()

  // Ends the job and throws; or throws what another has ended it with.
  [[noreturn]] void fail(ErrorCode code, const std::string& text);
  // Aborts the communicators of all lanes, so that nothing on the device waits any more. Under lanes_mutex().
  void abort_lanes();

 private:
  void finish_call(const char* name, ncclResult_t result, const ncclComm_t& comm, double timeout_seconds,
                   FunctionRef<std::string(double)> late);
  void wait_for_abort();  // once the job has ended

  const NcclLibrary nccl_;
  int version_;
  Device& device_;
  const int device_index_;
  FlightRecorder& recorder_;
  Log& log_;
  Communicator& host_world_;
  std::deque<std::string> names_;  // of communicators
  std::deque<ncclComm_t> comms_;   // where NCCL puts them
  std::shared_ptr<CudaStream> shared_stream_;
  std::timed_mutex calls_mutex_;  // NCCL takes one thread at a time
  std::mutex lanes_mutex_;
  std::vector<NcclLane*> lanes_;
  std::atomic<bool> aborted_{false};
  std::unique_ptr<NcclWatchdog> watchdog_;
};

// Whether some member has not started the operation, as far as the status board shows it: a member on another host
// counts as there, for those who see it missing report it.
bool is_missed(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op);
// What is said of an operation that waited too long.
std::string late_text(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op, double waited_seconds);

}  // namespace ashlar
