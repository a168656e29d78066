// Messages through MPI's nonblocking point-to-point calls.
#pragma once

#include <mpi.h>

#include <array>
#include <vector>

#include "runtime/comm/host/host_rank.h"
#include "runtime/comm/host/messenger.h"

namespace ashlar {

class MpiMessenger final : public Messenger {
 public:
  // `comm` serves this messenger alone and outlives it.
  MpiMessenger(HostRank& rank, const GroupInfo& group, MPI_Comm comm);

  uint64_t start(std::span<const Message> messages) override;
  bool finished(uint64_t batch) override;
  bool finished(uint64_t batch, size_t index) override;
  std::span<const Message> messages(uint64_t batch) const override;

 private:
  // A message beyond 1 GiB travels in several parts: MPI counts in int.
  struct Part {
    MPI_Request request = MPI_REQUEST_NULL;
    size_t message = 0;
    int bytes = 0;
    bool done = false;
  };
  struct Batch {
    uint64_t number = 0;
    std::vector<Message> messages;
    std::vector<Part> parts;
  };

  void start_parts(Batch& batch, size_t index);
  bool part_done(const Batch& batch, Part& part);

  HostRank& rank_;
  GroupInfo group_;
  MPI_Comm comm_;
  uint64_t num_batches_ = 0;
  std::array<Batch, kMaxBatches> ring_;
};

}  // namespace ashlar
