// Device memory of a rank by what it is for.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "parallel/plan/run_shape.h"

namespace ashlar {

enum class MemoryItem {
  kParameters,
  kGradients,            // of the parameters
  kOptimizer,            // moments, and fp32 masters of 16-bit parameters
  kActivations,          // saved by forward, for every micro-batch in flight
  kActivationGradients,  // between layers and stages, and pending weight gradients
  kWorkspace,            // within one pass of one layer; sums of the norm; the numbers of a step
  kKernels,              // what prepare_kernels takes for a stream
  kCommunication,        // of our communicators; what NCCL takes for itself is not known beforehand
};
constexpr size_t kNumMemoryItems = 8;
const char* memory_item_name(MemoryItem item);

struct RankMemory {
  std::array<int64_t, kNumMemoryItems> bytes{};  // by MemoryItem

  int64_t of(MemoryItem item) const { return bytes[static_cast<size_t>(item)]; }
  int64_t total() const;
  MemoryItem largest() const;
  bool operator==(const RankMemory&) const = default;
};

// Micro-batches that a stage holds at once: all that memory depends on a schedule for.
struct StageSlots {
  int activations = 0;  // in training or evaluation
  int output_gradients = 0;
  int pending_gradients = 0;
};
// Pure. By stage, from the schedule that make_schedule knows by this name.
std::vector<StageSlots> count_stage_slots(const std::string& schedule, int num_stages, int num_microbatches);

// Pure. By pipeline stage: all ranks of a stage need the same, to the byte what a run allocates before its first step
// (on a CPU; on GPUs CUDA's context and NCCL's buffers come on top). Counted by the layout functions that a run uses.
std::vector<RankMemory> plan_memory(const RunShape& shape);
// Pure. The same where count_stage_slots() was asked before: for whoever looks at many shapes.
std::vector<RankMemory> plan_memory(const RunShape& shape, const std::vector<StageSlots>& slots);
// Pure. Parameters, gradients and optimizer state of the fullest rank: what it needs whatever the batch and schedule.
int64_t least_memory(const RunShape& shape);

// Pure. The stage that needs most, the earliest of equals.
size_t fullest_stage(const std::vector<RankMemory>& stages);

}  // namespace ashlar
