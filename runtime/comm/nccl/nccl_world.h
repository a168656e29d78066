// The world over NCCL. nccl_unavailable.cpp is linked instead where NCCL is absent.
#pragma once

#include <memory>

#include "runtime/comm/launch.h"

namespace ashlar {

// Collective. Blocks the host until all ranks have met, for `init_timeout_seconds` at most. The world over memory of
// `device`, which is a GPU of this rank's own.
std::unique_ptr<Communicator> make_nccl_world(RankContext& host, Device& device, double init_timeout_seconds);

// The version of the library that loads (throws kUsage when none does) and of the header that was compiled in, as NCCL
// numbers them (22809 is 2.28.9); 0 in a build without NCCL.
int nccl_version();
int nccl_header_version();

}  // namespace ashlar
