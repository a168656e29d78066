#include "runtime/comm/mpi/mpi_messenger.h"

#include <algorithm>

#include "runtime/comm/mpi/mpi_check.h"

namespace ashlar {

MpiMessenger::MpiMessenger(HostRank& rank, const GroupInfo& group, MPI_Comm comm)
    : rank_(rank), group_(group), comm_(comm) {
  for (Batch& batch : ring_) {  // a pipeline's exchanges have up to four legs: even the first ones allocate nothing
    batch.messages.reserve(4);
    batch.parts.reserve(4);
  }
}

uint64_t MpiMessenger::start(std::span<const Message> messages) {
  Batch& batch = ring_[++num_batches_ % kMaxBatches];
  batch.number = num_batches_;
  batch.messages.assign(messages.begin(), messages.end());
  batch.parts.clear();
  for (size_t index = 0; index < batch.messages.size(); ++index) {
    start_parts(batch, index);
  }
  return num_batches_;
}

void MpiMessenger::start_parts(Batch& batch, size_t index) {
  constexpr size_t kPartBytes = size_t{1} << 30;
  const Message& message = batch.messages[index];
  size_t begin = 0;
  do {
    Part part{.request = MPI_REQUEST_NULL,
              .message = index,
              .bytes = static_cast<int>(std::min(kPartBytes, message.bytes - begin)),
              .done = false};
    std::byte* data = message.data + begin;
    if (message.is_send) {
      mpi_check(MPI_Isend(data, part.bytes, MPI_BYTE, message.peer, message.tag, comm_, &part.request), "MPI_Isend");
    } else {
      // Any tag: messages pair in their order, and a tag that differs is reported instead of waited for.
      mpi_check(MPI_Irecv(data, part.bytes, MPI_BYTE, message.peer, MPI_ANY_TAG, comm_, &part.request), "MPI_Irecv");
    }
    batch.parts.push_back(part);
    begin += static_cast<size_t>(part.bytes);
  } while (begin < message.bytes);
}

bool MpiMessenger::part_done(const Batch& batch, Part& part) {
  if (part.done) {
    return true;
  }
  int done = 0;
  MPI_Status status;
  const int code = MPI_Test(&part.request, &done, &status);
  int error_class = MPI_SUCCESS;
  MPI_Error_class(code, &error_class);
  if (error_class != MPI_ERR_TRUNCATE) {
    mpi_check(code, "MPI_Test");
  }
  if (done == 0 && error_class == MPI_SUCCESS) {
    return false;
  }
  part.done = true;
  const Message& message = batch.messages[part.message];
  if (!message.is_send) {
    int bytes = 0;
    mpi_check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (error_class == MPI_ERR_TRUNCATE || bytes != part.bytes || status.MPI_TAG != message.tag) {
      rank_.fail(ErrorCode::kCommunication,
                 fmt::format("messages of group \"{}\" do not pair: rank {} sends {}{} bytes with tag {}, rank {} "
                             "receives {} bytes with tag {}",
                             group_.name, group_.world_ranks[static_cast<size_t>(message.peer)],
                             error_class == MPI_ERR_TRUNCATE ? "more than " : "",
                             error_class == MPI_ERR_TRUNCATE ? part.bytes : bytes, status.MPI_TAG,
                             group_.world_ranks[static_cast<size_t>(group_.rank)], part.bytes, message.tag));
    }
  }
  return true;
}

bool MpiMessenger::finished(uint64_t number) {
  Batch& batch = ring_[number % kMaxBatches];
  if (batch.number != number) {
    return true;
  }
  bool all = true;
  for (Part& part : batch.parts) {
    all = part_done(batch, part) && all;
  }
  return all;
}

bool MpiMessenger::finished(uint64_t number, size_t index) {
  Batch& batch = ring_[number % kMaxBatches];
  if (batch.number != number) {
    return true;
  }
  bool all = true;
  for (Part& part : batch.parts) {
    if (part.message == index) {
      all = part_done(batch, part) && all;
    }
  }
  return all;
}

std::span<const Message> MpiMessenger::messages(uint64_t number) const {
  return ring_[number % kMaxBatches].messages;
}

}  // namespace ashlar
