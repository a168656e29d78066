// What every call of the stand-in begins with.
#pragma once

#include "tests/emulation/standins/nccl/comm.h"

namespace ashlar::standin {

// A call on a communicator: it is there, has no call or group of another thread open, and nothing in progress.
class Entry {
 public:
  Entry(ncclComm_t handle, const char* call);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  ncclResult_t result() const { return result_; }
  const std::shared_ptr<ncclComm>& comm() const { return comm_; }

 private:
  ncclResult_t result_ = ncclSuccess;
  std::shared_ptr<ncclComm> comm_;
  bool holds_ = false;
};

// Goes on with a call in the communicator's thread; its state is ncclInProgress until then.
void in_background(const std::shared_ptr<ncclComm>& comm, std::function<ncclResult_t()> rest);

}  // namespace ashlar::standin
