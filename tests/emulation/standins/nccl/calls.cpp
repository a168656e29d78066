// Operations and groups as the program calls them.
#include "tests/emulation/standins/nccl/calls.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "tests/emulation/standins/cudart/state.h"

namespace ashlar::standin {
namespace {

// What the open group of this thread holds, one entry for each communicator.
struct Pending {
  std::shared_ptr<ncclComm> comm;
  cudaStream_t stream = nullptr;
  std::vector<QueuedOp> ops;
};
thread_local int group_depth = 0;
thread_local std::vector<Pending> group;

uint64_t this_thread() {
  static std::atomic<uint64_t> count{0};
  static thread_local const uint64_t number = count.fetch_add(1) + 1;
  return number;
}

bool in_group(const ncclComm& comm) {
  return std::any_of(group.begin(), group.end(), [&](const Pending& one) { return one.comm.get() == &comm; });
}

size_t ranks_of(ncclComm_t handle) {
  const std::shared_ptr<ncclComm> comm = find_comm(handle);
  return comm == nullptr ? 0 : static_cast<size_t>(comm->size);
}

// Memory of the communicator's device, all of it.
std::string fault_of(const ncclComm& comm, const void* memory, size_t bytes) {
  if (bytes == 0) {
    return {};
  }
  const Lock lock(state().mutex);
  const Place place = locate(memory, bytes);
  if (place.allocation == nullptr) {
    return place.text;
  }
  return place.allocation->device == comm.device
             ? ""
             : place.text + ", which is not memory of device " + std::to_string(comm.device);
}

void put_on_stream(const Pending& work) {
  const std::shared_ptr<ncclComm> comm = work.comm;
  ++comm->num_enqueued;
  std::vector<QueuedOp> ops = work.ops;
  const NcclFaultPlan& fault = nccl_config().fault;
  const bool strikes = (fault.fault == NcclFault::kAbsent || fault.fault == NcclFault::kAsyncError) &&
                       fault.rank == comm->rank && fault.number == comm->num_enqueued &&
                       (fault.communicator.empty() || fault.communicator == comm->name);
  ops.front().broken = strikes;
  const std::string name = ops.front().op.text() +
                           (ops.size() > 1 ? " and " + std::to_string(ops.size() - 1) + " more in a group" : "") +
                           " of " + describe(*comm) + ":";
  if (!enqueue(work.stream, name, [comm, ops = std::move(ops)] { run_work(comm, ops); })) {
    comm->own_error = ncclUnhandledCudaError;
    comm->num_finished.fetch_add(1);
  }
}

// The two ends of a first message meet before it is on the stream: whoever waits for one end to be out of
// ncclInProgress waits for the other end to come.
ncclResult_t meet_peers(ncclComm& comm, const Pending& work) {
  comm.cell(comm.rank).connects = 1;
  comm.region->changed();
  const auto missing = [&] {
    std::vector<int> ranks;
    for (const QueuedOp& one : work.ops) {
      const bool message = one.op.call == NcclCall::kSend || one.op.call == NcclCall::kReceive;
      if (message && comm.cell(one.op.root).connects == 0) {
        ranks.push_back(one.op.root);
      }
    }
    return ranks;
  };
  const bool met = wait_for(
      comm, work.ops.front().op.text() + ", to connect", [&] { return missing().empty(); }, missing);
  return met ? ncclSuccess : ncclRemoteError;
}

// Work of one call or group. The first operation of a communicator connects its ranks, which a non-blocking one does in
// the background: the stream has the work only when the communicator is out of ncclInProgress.
ncclResult_t launch(std::vector<Pending> works) {
  ncclResult_t result = ncclSuccess;
  for (Pending& work : works) {
    const std::shared_ptr<ncclComm> comm = work.comm;
    comm->stream = work.stream;
    const bool connects = !comm->connected;
    comm->connected = true;
    if (connects && !comm->blocking) {
      in_background(comm, [work = std::move(work)] {
        std::this_thread::sleep_for(std::chrono::microseconds(500));
        const ncclResult_t met = meet_peers(*work.comm, work);
        if (met == ncclSuccess) {
          put_on_stream(work);
        }
        return met;
      });
      result = ncclInProgress;
    } else {
      put_on_stream(work);
    }
  }
  return result;
}

ncclResult_t issue(ncclComm_t handle, cudaStream_t stream, QueuedOp queued, size_t send_bytes, size_t receive_bytes) {
  const char* const call = call_name(queued.op.call);
  const Entry entry(handle, call);
  if (entry.result() != ncclSuccess) {
    return entry.result();
  }
  const std::shared_ptr<ncclComm>& comm = entry.comm();
  const bool message = queued.op.call == NcclCall::kSend || queued.op.call == NcclCall::kReceive;
  if (type_bytes(queued.op.type) == 0 || (queued.op.reduce != ncclSum && queued.op.reduce != ncclMax) ||
      queued.op.root < 0 || queued.op.root >= comm->size) {
    return refuse_call(ncclInvalidArgument, std::string(call) + " of " + describe(*comm) +
                                                ": a type, reduction or rank that the stand-in does not know");
  }
  if (comm->stream.load() != nullptr && comm->stream.load() != stream) {
    return refuse_call(ncclInvalidUsage,
                       std::string(call) + " of " + describe(*comm) + " on another stream than its earlier operations");
  }
  for (const auto& [memory, bytes] :
       {std::pair(queued.send, send_bytes), std::pair(static_cast<const void*>(queued.receive), receive_bytes)}) {
    const std::string fault = fault_of(*comm, memory, bytes);
    if (!fault.empty()) {
      return refuse_call(ncclInvalidArgument, std::string(call) + " of " + describe(*comm) + " uses " + fault);
    }
  }
  if (queued.op.count == 0 && !message) {
    return ncclSuccess;  // an empty collective is dropped
  }
  const bool sends = queued.op.call == NcclCall::kSend;
  queued.op.number = !message ? ++comm->num_collectives
                     : sends  ? ++comm->num_sends[queued.op.root]
                              : ++comm->num_receives[queued.op.root];
  if (group_depth == 0) {
    return launch({{comm, stream, {queued}}});
  }
  const auto found = std::find_if(group.begin(), group.end(), [&](const Pending& one) { return one.comm == comm; });
  if (found == group.end()) {
    comm->inside = this_thread();  // until the group ends
    group.push_back({comm, stream, {queued}});
  } else {
    found->ops.push_back(queued);
  }
  return ncclSuccess;
}

}  // namespace

Entry::Entry(ncclComm_t handle, const char* call) : comm_(find_comm(handle)) {
  if (comm_ == nullptr) {
    result_ = refuse_call(ncclInvalidArgument,
                          std::string(call) + ": no such communicator; it was never made, or destroyed or aborted");
    return;
  }
  uint64_t nobody = 0;
  holds_ = comm_->inside.compare_exchange_strong(nobody, this_thread());
  if (!holds_ && nobody != this_thread()) {
    result_ = refuse_call(ncclInvalidUsage,
                          std::string(call) + ": " + describe(*comm_) + " is in a call or a group of another thread");
    return;
  }
  if (comm_->state == ncclInProgress) {
    result_ = refuse_call(ncclInvalidUsage, std::string(call) + ": " + describe(*comm_) +
                                                " is still ncclInProgress with an earlier call");
    return;
  }
  result_ = error_of(*comm_);
}

Entry::~Entry() {
  if (holds_ && !in_group(*comm_)) {
    comm_->inside = 0;
  }
}

}  // namespace ashlar::standin

using namespace ashlar::standin;

bool ncclComm::is_free_for_this_thread() const {
  const uint64_t holder = inside.load();
  return holder == 0 || holder == this_thread();
}

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = nccl_config().version > 0 ? nccl_config().version : NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t handle) {
  thread_local std::deque<std::string> texts;
  const std::shared_ptr<ncclComm> comm = find_comm(handle);
  const bool failed = comm != nullptr && error_of(*comm) != ncclSuccess;
  texts.push_back(failed ? error_text_of(*comm) : last_refusal());
  if (texts.size() > 16) {
    texts.pop_front();
  }
  return texts.back().c_str();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  const std::shared_ptr<ncclComm> comm = find_comm(handle);
  if (comm == nullptr) {
    return refuse_call(ncclInvalidArgument, "ncclCommGetAsyncError: no such communicator");
  }
  const auto state = static_cast<ncclResult_t>(comm->state.load());
  *error = state != ncclSuccess ? state : error_of(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  const Entry entry(handle, "ncclCommCount");
  *count = entry.result() == ncclSuccess ? entry.comm()->size : 0;
  return entry.result();
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  const Entry entry(handle, "ncclCommUserRank");
  *rank = entry.result() == ncclSuccess ? entry.comm()->rank : 0;
  return entry.result();
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) {
    return refuse_call(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  }
  if (--group_depth > 0) {
    return ncclSuccess;
  }
  std::vector<Pending> works = std::exchange(group, {});
  for (const Pending& work : works) {
    work.comm->inside = 0;
  }
  return launch(std::move(works));
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * type_bytes(type);
  return issue(comm, stream,
               {{.call = NcclCall::kAllReduce, .type = type, .reduce = op, .count = count}, send, receive}, bytes,
               bytes);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const size_t bytes = count * type_bytes(type);
  return issue(comm, stream, {{.call = NcclCall::kAllGather, .type = type, .count = count}, send, receive}, bytes,
               bytes * ranks_of(comm));
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * type_bytes(type);
  return issue(comm, stream,
               {{.call = NcclCall::kReduceScatter, .type = type, .reduce = op, .count = count}, send, receive},
               bytes * ranks_of(comm), bytes);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * type_bytes(type);
  return issue(comm, stream,
               {{.call = NcclCall::kBroadcast, .type = type, .root = root, .count = count}, send, receive}, 0, bytes);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue(comm, stream, {{.call = NcclCall::kSend, .type = type, .root = peer, .count = count}, send, nullptr},
               count * type_bytes(type), 0);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return issue(comm, stream,
               {{.call = NcclCall::kReceive, .type = type, .root = peer, .count = count}, nullptr, receive}, 0,
               count * type_bytes(type));
}

ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* memory) {
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // extern "C"
