// Linked where NCCL was not found.
#include "runtime/comm/nccl/nccl_world.h"

namespace ashlar {

std::unique_ptr<Communicator> make_nccl_world(RankContext&, Device&, double) {
  throw Error(
      ErrorCode::kUsage,
      "--distributed-backend nccl was asked for, but this build has no NCCL; give --distributed-backend staged, "
      "or install libnccl-dev, configure again and build");
}

int nccl_version() {
  return 0;
}

int nccl_header_version() {
  return 0;
}

}  // namespace ashlar
