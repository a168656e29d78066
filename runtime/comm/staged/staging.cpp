#include "runtime/comm/staged/staging.h"

#include <algorithm>
#include <bit>

namespace ashlar {

Staging::Staging(Device& device, size_t chunk_bytes) : device_(device), chunk_bytes_(chunk_bytes) {
  for (StagingBlock& chunk : chunks_) {
    chunk = {device.allocate_host(chunk_bytes, "the staged communicator's chunks", MemoryItem::kCommunication),
             device.create_event()};
  }
}

std::unique_ptr<StagingBlock> Staging::take(size_t bytes) {
  // The smallest that will do. Sizes are powers of two, so that activations and gradients of one model share blocks.
  const auto enough = [bytes](const auto& block) { return block->buffer.bytes() >= bytes; };
  const auto smaller = [&](const auto& a, const auto& b) {
    return enough(a) != enough(b) ? enough(a) : a->buffer.bytes() < b->buffer.bytes();
  };
  const auto best = std::min_element(free_.begin(), free_.end(), smaller);
  if (best != free_.end() && enough(*best)) {
    std::unique_ptr<StagingBlock> block = std::move(*best);
    free_.erase(best);
    return block;
  }
  auto block = std::make_unique<StagingBlock>();
  block->buffer =
      device_.allocate_host(std::bit_ceil(bytes), "the staged communicator's messages", MemoryItem::kCommunication);
  block->last_use = device_.create_event();
  return block;
}

void Staging::give_back(std::unique_ptr<StagingBlock> block) {
  free_.push_back(std::move(block));
}

}  // namespace ashlar
