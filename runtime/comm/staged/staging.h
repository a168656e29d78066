// Host memory that operands of a staged communicator go through, and the events that say when it may be used again.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/device/device.h"

namespace ashlar {

// A piece of pinned memory. `last_use` is recorded after the last copy from or to it.
struct StagingBlock {
  Buffer buffer;
  std::unique_ptr<Event> last_use;

  std::byte* data() const { return buffer.data(); }
};

// Of one rank, shared by all its groups.
class Staging {
 public:
  Staging(Device& device, size_t chunk_bytes);

  Device& device() const { return device_; }

  // The two buffers that the chunks of a collective alternate between.
  size_t chunk_bytes() const { return chunk_bytes_; }
  StagingBlock& chunk(size_t number) { return chunks_[number % chunks_.size()]; }

  // Blocks the host where a new block is needed. For one operand of an exchange, until it is given back; `bytes` may be
  // 0. The next taker waits for `last_use` before it writes.
  std::unique_ptr<StagingBlock> take(size_t bytes);
  void give_back(std::unique_ptr<StagingBlock> block);

 private:
  Device& device_;
  size_t chunk_bytes_;
  std::array<StagingBlock, 2> chunks_;
  std::vector<std::unique_ptr<StagingBlock>> free_;
};

}  // namespace ashlar
