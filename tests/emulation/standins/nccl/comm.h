// A communicator of the stand-in: one rank's end, and what its operations are made of.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/emulation/standins/nccl/region.h"
#include "tests/emulation/standins/nccl/standin_nccl.h"

namespace ashlar::standin {

// One call as it waits on its stream.
struct QueuedOp {
  NcclOp op;
  const void* send = nullptr;
  void* receive = nullptr;
  bool broken = false;  // the fault of the plan strikes here
};

const NcclConfig& nccl_config();

}  // namespace ashlar::standin

// The name is NCCL's.
struct ncclComm {
  using Region = ashlar::standin::Region;

  std::string name;
  std::string region_name;
  int rank = 0;
  int size = 0;
  int device = 0;
  bool blocking = true;
  std::unique_ptr<Region> region;

  std::atomic<int32_t> state{ncclSuccess};  // of the last call that went on in the background
  std::atomic<int32_t> own_error{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::atomic<bool> over{false};  // destroyed or aborted
  std::atomic<uint64_t> num_finished{0};
  std::thread background;
  std::atomic<ncclComm*> child{nullptr};  // in the making by ncclCommSplit: aborted with its parent
  std::mutex text_mutex;
  std::string error_text;

  // Of the one thread that issues.
  std::atomic<uint64_t> inside{0};            // thread that is in a call or has a group open with this communicator
  std::atomic<cudaStream_t> stream{nullptr};  // the one that all its operations go to
  uint64_t num_enqueued = 0;                  // work on the stream
  uint64_t num_collectives = 0;
  uint64_t num_splits = 0;
  bool connected = false;  // the first operation has been started
  bool finalized = false;
  std::map<int, uint64_t> num_sends;  // by peer
  std::map<int, uint64_t> num_receives;

  // Of the stream's worker.
  uint64_t num_pieces = 0;

  bool is_free_for_this_thread() const;  // no other thread is in a call or has a group open with it
  ashlar::standin::RankCell& cell(int other) { return region->cell(other); }
};

namespace ashlar::standin {

// The communicator's error: the first one of this rank or of all.
ncclResult_t error_of(ncclComm& comm);
std::string error_text_of(ncclComm& comm);
// An error that all ranks get, with a report.
void fail_all(ncclComm& comm, ncclResult_t error, const std::string& text);

// Blocks the host until ready(). False when the communicator is aborted or has failed.
// `missing` gives the ranks that are waited for; one that cannot come any more is an error.
using Missing = std::function<std::vector<int>()>;
bool wait_for(ncclComm& comm, const std::string& what, const std::function<bool()>& ready, const Missing& missing);

// Run by the stream's worker. False: the communicator is aborted or failed.
bool run_collective(ncclComm& comm, const QueuedOp& op);
bool run_messages(ncclComm& comm, const std::vector<QueuedOp>& legs);
// All operations that one call or group puts on a stream.
void run_work(const std::shared_ptr<ncclComm>& comm, const std::vector<QueuedOp>& ops);

size_t type_bytes(int32_t type);  // 0: a type that the stand-in does not know
// dst[i] = sources[0][i] (+) sources[1][i] (+) ..., from left to right; 16-bit types accumulate in fp32.
void reduce(std::byte* dst, const std::vector<const std::byte*>& sources, size_t count, int32_t type, int32_t op);

// The live communicators of this process.
void add_comm(const std::shared_ptr<ncclComm>& comm);
void remove_comm(ncclComm& comm);                        // its handle is none any more
std::shared_ptr<ncclComm> find_comm(ncclComm_t handle);  // null: none, or over
std::string describe(const ncclComm& comm);              // communicator "tensor", rank 1 of 4
void demand_peers(const ncclComm& comm);                 // somebody waits for what they have queued

// A mistake of the program: a report, and `error` as the call's result.
ncclResult_t refuse_call(ncclResult_t error, const std::string& text);
const std::string& last_refusal();  // of this thread

}  // namespace ashlar::standin
