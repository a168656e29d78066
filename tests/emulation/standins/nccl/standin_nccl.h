// A strict stand-in for NCCL, as a test sees it: what it is told to break. NCCL's own header declares the calls it
// answers. What it finds wrong is among standin::take_reports(), and is the communicator's error.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ashlar::standin {

enum class NcclFault {
  kNone,
  kAbsent,      // the rank never enters the operation
  kAsyncError,  // the rank's communicator fails at the operation
  kInitHangs,   // the rank never comes to the start of the communicator
};

struct NcclFaultPlan {
  NcclFault fault = NcclFault::kNone;
  std::string communicator;  // its commName; empty: any
  int rank = 0;              // in that communicator
  uint64_t number = 1;       // of the operation, counted on the rank and communicator from 1; groups count as one
};

struct NcclConfig {
  NcclFaultPlan fault = {};
  int version = 0;             // 0: that of the header
  double timeout_seconds = 0;  // after which an operation gives up on its own; 0: 120
};

// Blocks the host. For communicators made from now on. Without a call, the environment says: ASHLAR_STANDIN_NCCL_FAULT
// ("absent|async|init,communicator,rank,number"), ASHLAR_STANDIN_NCCL_VERSION, ASHLAR_STANDIN_NCCL_TIMEOUT.
void configure_nccl(const NcclConfig& config);

// Communicators that are still there.
std::vector<std::string> nccl_leaks();

}  // namespace ashlar::standin
