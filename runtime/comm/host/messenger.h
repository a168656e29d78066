// Messages between the ranks of one group: the seam under exchange and under groups that span hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ashlar {

struct Message {
  bool is_send = false;
  int peer = 0;  // rank in the group
  int tag = 0;
  std::byte* data = nullptr;  // only read when sending; stays valid until the batch is finished
  size_t bytes = 0;
};

// Messages between the same two ranks arrive in the order of their start. Neither side waits in start().
class Messenger {
 public:
  // So many batches may be unfinished at once; their memory is reused, so starting a batch allocates nothing once every
  // place in the ring has held its largest batch.
  static constexpr uint64_t kMaxBatches = 128;

  virtual ~Messenger() = default;
  // Starts all messages at once. Batches are numbered 1, 2, ...; batch n - kMaxBatches must be finished.
  virtual uint64_t start(std::span<const Message> messages) = 0;
  // Never block; they move messages on. Batches older than the ring are finished.
  virtual bool finished(uint64_t batch) = 0;
  virtual bool finished(uint64_t batch, size_t index) = 0;
  // What was started, for reports; the batch is one of the last kMaxBatches.
  virtual std::span<const Message> messages(uint64_t batch) const = 0;
};

}  // namespace ashlar
