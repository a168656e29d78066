#include "runtime/comm/mpi/mpi_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include "runtime/base/threads.h"
#include "runtime/comm/host/host_communicator.h"
#include "runtime/comm/host/run_body.h"
#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/comm/mpi/mpi_world.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {
namespace {

Carrier carrier_from_environment() {
  const char* text = std::getenv("ASHLAR_MPI_TRANSPORT");
  if (text == nullptr || std::strcmp(text, "shared") == 0) {
    return Carrier::kRegion;
  }
  REQUIRE(std::strcmp(text, "p2p") == 0, ErrorCode::kUsage,
          "ASHLAR_MPI_TRANSPORT={}: one of shared (the default) and p2p is needed", text);
  return Carrier::kMessages;
}

[[noreturn]] void end_job(MpiWorld& world, MpiRank& rank, const Outcome& outcome) {
  StatusBoard& board = world.board();
  board.mine(world.rank()).left.store(true);
  // The rank that ended the job gives the others time to say where they stand, and they leave the end to it: it calls
  // MPI_Abort, and mpirun kills whoever sleeps or computes on a second later.
  const bool first = board.ended_by() == world.rank();
  const auto patience = std::chrono::milliseconds(!outcome.peers_report ? 0 : first ? 1500 : 3000);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const auto somebody_stays = [&] {
    for (int peer = 0; peer < world.size(); ++peer) {
      if (board.of(peer).present.load() && !board.of(peer).left.load()) {
        return true;
      }
    }
    return !first;
  };
  while (std::chrono::steady_clock::now() < deadline && somebody_stays()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  rank.abort(outcome.exit_status);
  _exit(outcome.exit_status);
}

// Leaves MPI only in an orderly end; otherwise end_job() ends the process before any destructor could wait for peers.
class MpiSession {
 public:
  MpiSession(int argc, char** argv) {
    int provided = 0;
    // Funneled: only the thread that runs the body calls MPI.
    mpi_check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  }
  ~MpiSession() {
    // A rank that fails at the start leaves without MPI_Finalize, which would wait for the others; mpirun sees that and
    // ends them.
    if (std::uncaught_exceptions() == 0) {
      MPI_Finalize();
    }
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

}  // namespace

int run_mpi_rank(int argc, char** argv, const LaunchEnvironment& launch, const std::function<int(RankContext&)>& body) {
  const MpiSession session(argc, argv);
  int found_size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &found_size);
  check_world_size(launch, found_size);
  MpiWorld world(carrier_from_environment());
  Outcome outcome;
  {
    Log log(fmt::format("rank {}", world.rank()));
    FlightRecorder recorder(world.board(), world.rank());
    CpuDevice device;
    MpiRank rank(world, recorder);
    HostCommunicator communicator(rank, world_group(world.rank(), world.size()));
    // Without this, N ranks of one host open a thread per core each: 25 to 70 times slower steps were measured.
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    const int threads = use_threads(std::max(1, cores / world.ranks_on_host()));
    log.debug("{} threads", threads);
    RankContext context{device, communicator, communicator, recorder, log, {world.host_rank(), world.ranks_on_host()}};
    outcome = run_body(rank, context, body);
    if (!outcome.orderly) {
      end_job(world, rank, outcome);
    }
  }
  world.free_all();
  return outcome.exit_status;
}

}  // namespace ashlar
