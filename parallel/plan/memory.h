// Memory of a rank by what it is for.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/pipeline/slots.h"
#include "parallel/plan/run_shape.h"
#include "runtime/device/memory_count.h"

namespace ashlar {

// What every parameter takes, whatever the batch.
inline constexpr std::array<MemoryItem, 3> kStateItems{MemoryItem::kParameters, MemoryItem::kGradients,
                                                       MemoryItem::kOptimizer};

struct RankMemory {
  std::array<int64_t, kNumMemoryItems> bytes{};       // of device memory, by MemoryItem
  std::array<int64_t, kNumMemoryItems> host_bytes{};  // of host memory that the device copies to and from
  int64_t disk_bytes = 0;                             // of the files of offloaded state and values

  int64_t of(MemoryItem item) const { return bytes[static_cast<size_t>(item)]; }
  int64_t host_of(MemoryItem item) const { return host_bytes[static_cast<size_t>(item)]; }
  int64_t total() const;  // of device memory
  int64_t host_total() const;
  // What a limit on a rank's memory is about: beside a GPU its own memory; for a CPU host memory too, which is the
  // same.
  int64_t limited(DeviceKind device) const { return total() + (device == DeviceKind::kCpu ? host_total() : 0); }
  int64_t state() const;  // parameters, gradients and optimizer state, without buffers
  bool operator==(const RankMemory&) const = default;
};

// Pure. Micro-batches that each stage holds at once, all that memory depends on a schedule for: by stage. The same for
// runs alike in schedule, number of stages and micro-batches: windows and reductions hold none.
std::vector<SlotCounts> count_stage_slots(const RunShape& shape);

// Pure. By pipeline stage: all ranks of a stage need the same, to the byte what a run allocates before its first step
// (on a CPU; on GPUs CUDA's context and NCCL's buffers come on top, and of host memory the messages of a staged
// communicator). Counted by the layout functions that a run uses.
std::vector<RankMemory> plan_memory(const RunShape& shape);
// Pure. The same where count_stage_slots() was asked before: for whoever looks at many shapes.
std::vector<RankMemory> plan_memory(const RunShape& shape, const std::vector<SlotCounts>& slots);
// Pure. Parameters, gradients and optimizer state of the fullest rank: what it needs whatever the batch and schedule.
int64_t least_memory(const RunShape& shape);

// Pure. The stage that needs most of what a limit is about, the earliest of equals.
size_t fullest_stage(std::span<const RankMemory> stages, DeviceKind device);

// Pure. What a rank needs most of, of what a limit is about.
struct LargestItem {
  std::string name;  // "host: optimizer state"
  int64_t bytes = 0;
};
LargestItem largest_item(const RankMemory& memory, DeviceKind device);

}  // namespace ashlar
