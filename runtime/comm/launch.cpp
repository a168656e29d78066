#include "runtime/comm/launch.h"

#include <malloc.h>

#include <cstdlib>

#include "runtime/comm/host/host_communicator.h"
#include "runtime/comm/host/launch_environment.h"
#include "runtime/comm/host/run_body.h"
#include "runtime/comm/mpi/mpi_ranks.h"
#include "runtime/comm/thread/thread_world.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {
namespace {

// oneDNN's sgemm takes about 4 MB from malloc at each call. Above glibc's threshold that is an mmap and an munmap, that
// is 1,000 page faults a call; below it the block comes back from the heap still mapped.
void keep_freed_memory_mapped() {
  constexpr int kThreshold = 64 << 20;
  mallopt(M_MMAP_THRESHOLD, kThreshold);
  mallopt(M_TRIM_THRESHOLD, 2 * kThreshold);
}

int run_alone(const std::function<int(RankContext&)>& body) {
  ThreadWorld world(1, Carrier::kRegion, RegionRounds::kBufferBytes);
  Log log("rank 0");
  FlightRecorder recorder(world.board(), 0);
  CpuDevice device;
  ThreadRank rank(world, recorder);
  HostCommunicator communicator(rank, world_group(0, 1));
  RankContext context{device, communicator, communicator, recorder, log};
  return run_body(rank, context, body).exit_status;
}

}  // namespace

int run_main(int argc, char** argv, const std::function<int(RankContext&)>& body) {
  keep_freed_memory_mapped();
  try {
    const LaunchEnvironment launch = find_launch([](const char* name) { return std::getenv(name); });
    return launch.under_mpi ? run_mpi_rank(argc, argv, launch, body) : run_alone(body);
  } catch (const Error& error) {  // there are no ranks yet
    Log("start").error("{}", error.what());
    return exit_code(error.code());
  }
}

}  // namespace ashlar
