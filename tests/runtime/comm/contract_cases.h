// What every communicator promises, as functions of a rank: contract_test.cpp runs them on thread ranks with both
// carriers and, under mpirun, on processes.
#pragma once

#include <vector>

#include "runtime/comm/launch.h"

namespace ashlar {

struct ContractCase {
  const char* name;
  void (*body)(RankContext&);
};

// fp32 elements in one member's buffer: decides which sizes take several chunks. Set before the ranks start.
extern int64_t contract_buffer_elements;
// NCCL's maximum passes over NaN. Set before the ranks start.
extern bool contract_max_keeps_nan;

std::vector<ContractCase> collective_cases();
std::vector<ContractCase> exchange_cases();

}  // namespace ashlar
