// What memory is held for, and how much of it: now, and at most so far.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace ashlar {

enum class MemoryItem {
  kParameters,
  kGradients,            // of the parameters
  kOptimizer,            // moments, and fp32 masters of 16-bit parameters
  kGatheredParameters,   // of layers that pass by, where the data ranks share them out
  kGradientStaging,      // gradients on their way to their owners
  kActivations,          // saved by forward, for every micro-batch in flight
  kActivationGradients,  // between layers and stages, and pending weight gradients
  kWorkspace,            // within one pass of one layer; sums of the norm; the numbers of a step
  kBatches,              // micro-batches and numbers of steps on their way between host and device
  kCopies,               // on their way between a GPU and ordinary host memory, outside steps
  kKernels,              // what prepare_kernels takes for a stream
  kCommunication,        // of our communicators; what NCCL takes for itself is not known
  kOther,                // what no plan speaks of: tests
};
constexpr size_t kNumMemoryItems = 13;
// Pure. "optimizer state".
const char* memory_item_name(MemoryItem item);

struct MemoryUse {
  int64_t now = 0;
  int64_t peak = 0;  // the most there was at once
};

struct MemoryUses {
  std::array<MemoryUse, kNumMemoryItems> items{};  // by MemoryItem; each has its peak at a time of its own
  MemoryUse total;

  const MemoryUse& of(MemoryItem item) const { return items[static_cast<size_t>(item)]; }
};

// Any thread may call.
class MemoryCount {
 public:
  void add(MemoryItem item, int64_t bytes);  // negative: given back
  MemoryUses uses() const;

 private:
  mutable std::mutex mutex_;
  MemoryUses uses_;
};

}  // namespace ashlar
