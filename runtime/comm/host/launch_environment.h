// What the environment says about how this process was started.
#pragma once

#include <functional>
#include <string>

namespace ashlar {

struct LaunchEnvironment {
  bool under_mpi = false;     // an MPI launcher started this process
  std::string variable;       // the variable that says so
  int announced_size = 0;     // number of processes the launcher announced, 0 when it did not
  std::string size_variable;  // where that stands
};

// Pure. `variable(name)` is getenv: nullptr when unset. Throws Error(kUsage) for a process that a launcher started as
// one of several without the means to find the others: N such processes would each train alone and overwrite each
// other's files.
LaunchEnvironment find_launch(const std::function<const char*(const char*)>& variable);

// Pure. Throws Error(kUsage) when fewer or more processes met than the launcher announced.
void check_world_size(const LaunchEnvironment& launch, int found_size);

}  // namespace ashlar
