// In place of uring_queue.cpp where liburing is not there.
#include "runtime/disk/io_queue.h"

namespace ashlar {

std::unique_ptr<IoQueue> open_uring_queue(std::string& reason) {
  reason = "this build has no liburing";
  return nullptr;
}

}  // namespace ashlar
