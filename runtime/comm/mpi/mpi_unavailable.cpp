#include "runtime/comm/mpi/mpi_ranks.h"

namespace ashlar {

int run_mpi_rank(int, char**, const LaunchEnvironment& launch, const std::function<int(RankContext&)>&) {
  throw Error(ErrorCode::kUsage,
              fmt::format("this program was built without MPI but started by an MPI launcher ({} is set): install "
                          "libopenmpi-dev and build again, or start it without mpirun",
                          launch.variable));
}

}  // namespace ashlar
