// Ranks that are processes under mpirun. mpi_unavailable.cpp is linked instead where MPI is absent.
#pragma once

#include <functional>

#include "runtime/comm/host/launch_environment.h"
#include "runtime/comm/launch.h"

namespace ashlar {

// Runs `body` as one rank of an MPI job, from MPI_Init to MPI_Finalize, and returns the exit status of the process.
// When a rank fails on its own, the whole job ends from in here. Throws Error(kUsage) when MPI is absent or found
// another number of processes than the launcher announced.
int run_mpi_rank(int argc, char** argv, const LaunchEnvironment& launch, const std::function<int(RankContext&)>& body);

}  // namespace ashlar
