#include "runtime/device/memory_count.h"

#include <algorithm>

namespace ashlar {

const char* memory_item_name(MemoryItem item) {
  static constexpr std::array<const char*, kNumMemoryItems> kNames{"parameters",
                                                                   "gradients",
                                                                   "optimizer state",
                                                                   "gathered parameters",
                                                                   "gradient staging",
                                                                   "activations",
                                                                   "activation gradients",
                                                                   "workspace",
                                                                   "micro-batches",
                                                                   "copies",
                                                                   "kernels' workspace",
                                                                   "communication",
                                                                   "other"};
  return kNames[static_cast<size_t>(item)];
}

void MemoryCount::add(MemoryItem item, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  for (MemoryUse* use : {&uses_.items[static_cast<size_t>(item)], &uses_.total}) {
    use->now += bytes;
    use->peak = std::max(use->peak, use->now);
  }
}

MemoryUses MemoryCount::uses() const {
  const std::lock_guard lock(mutex_);
  return uses_;
}

}  // namespace ashlar
