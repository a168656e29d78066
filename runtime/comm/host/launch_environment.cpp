#include "runtime/comm/host/launch_environment.h"

#include <cstdlib>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

constexpr const char* kHowToStart =
    "start all ranks with one launcher that this MPI knows, for instance: mpirun -np {} <program> <flags>";

}  // namespace

LaunchEnvironment find_launch(const std::function<const char*(const char*)>& variable) {
  LaunchEnvironment launch;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE", "PMI_RANK"}) {
    if (variable(name) != nullptr) {
      launch.under_mpi = true;
      launch.variable = name;
      break;
    }
  }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    const char* text = variable(name);
    // SLURM_NTASKS alone only describes an allocation; with SLURM_PROCID it describes this process.
    const bool speaks_of_us = std::string(name) != "SLURM_NTASKS" || variable("SLURM_PROCID") != nullptr;
    if (text != nullptr && speaks_of_us) {
      launch.announced_size = std::atoi(text);
      launch.size_variable = name;
      break;
    }
  }
  if (!launch.under_mpi) {
    check_world_size(launch, 1);
  }
  return launch;
}

void check_world_size(const LaunchEnvironment& launch, int found_size) {
  REQUIRE(launch.announced_size == 0 || launch.announced_size == found_size, ErrorCode::kUsage,
          "{}={} announces {} processes, but this process found {}: each of them would train alone; {}",
          launch.size_variable, launch.announced_size, launch.announced_size, found_size,
          fmt::format(fmt::runtime(kHowToStart), launch.announced_size));
}

}  // namespace ashlar
