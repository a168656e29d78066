// How a program becomes ranks: processes under mpirun, or threads of one process in tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/device_request.h"
#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/host/carrier.h"

namespace ashlar {

// Where a rank stands among those of its host (by shared memory, not by a launcher's variable).
struct HostPlace {
  int host_rank = 0;
  int num_host_ranks = 1;
};

// What a rank is given at start. Everything else hangs on it; there are no globals.
struct RankContext {
  Device& device;
  Communicator& world;         // over host memory: agreement, text, files
  Communicator& device_world;  // over the device's memory; the same as `world` on a CPU. The grid's axes split from it
  FlightRecorder& recorder;    // also holds the deadline of every wait: recorder.set_timeout(seconds)
  Log& log;
  HostPlace place{};
};

// The body of main() of every parallel program: starts MPI when mpirun started us (one rank of threads otherwise), runs
// `body` on this rank, and holds the only catch: logs, dumps the recorder, ends the whole job, returns the exit code.
// Errors that all ranks threw alike (see agree) are printed once, by rank 0.
int run_main(int argc, char** argv, const std::function<int(RankContext&)>& body);

// Runs `body` on `num_ranks` threads with thread communicators; rethrows the first error. For tests and small tools.
struct ThreadRankOptions {
  double timeout_seconds = 60;
  bool queued_streams = false;              // the device's streams run on worker threads
  size_t buffer_bytes = size_t{256} << 10;  // 16 KiB or more; small ones make many chunks of little data
  Carrier carrier = Carrier::kRegion;       // kMessages tests what groups that span hosts do
  DeviceRequest device{};                   // gpu_index -1: rank r gets GPU r modulo the visible ones
};
void run_thread_ranks(int num_ranks, const std::function<void(RankContext&)>& body,
                      const ThreadRankOptions& options = {});

// An error that every rank of the job throws alike, from the same place: peers need no abort, and one line says it all.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective. Blocks the host. Runs `check` on every rank; when it throws on any, throws the same AgreedError on all
// of them, naming the ranks that failed (unless all did). So a mistake that only one rank sees cannot leave the others
// waiting.
void agree(Communicator& world, const std::function<void()>& check);

// Runs `body`, which leaves work on the device, such as training steps. An error that only this rank throws ends the
// job at once: further out, destructors would wait for a device that waits for other ranks, which wait for this one.
// (The watchdogs then stop what is under way.)
template <typename Body>
decltype(auto) end_job_on_error(RankContext& rank, Body&& body) {
  try {
    return body();
  } catch (const AgreedError&) {
    throw;
  } catch (const Error& error) {
    rank.recorder.end_job(error.code(), error.what());
    throw;
  }
}

// Collective. Blocks the host. Every rank's text, by rank.
std::vector<std::string> all_gather_text(Communicator& world, const std::string& text);

}  // namespace ashlar
