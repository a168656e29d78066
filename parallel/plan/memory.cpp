#include "parallel/plan/memory.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "kernels/prepare.h"
#include "kernels/reduce.h"
#include "kernels/stat_dtype.h"
#include "parallel/pipeline/pipeline_memory.h"
#include "parallel/plan/step_numbers.h"
#include "parallel/zero/tensor_sum.h"
#include "parallel/zero/update_cells.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace {

// Of a communicator over NCCL, for each of its ranks and one more: a color and a key, as int64.
constexpr int64_t kNcclScratchBytes = 16;

// Every rank of a stage needs as much, padding included.
void count_parameters(const RunShape& shape, const StageChunk& chunk, RankMemory& memory) {
  const FlatLayout layout = lay_out_flat(flat_tensors({stage_parameters(chunk)}), shape.sharding);
  const StoreBytes bytes = store_bytes(layout, shape.config.dtype);
  memory.bytes[static_cast<size_t>(MemoryItem::kParameters)] = bytes.values;
  memory.bytes[static_cast<size_t>(MemoryItem::kGatheredParameters)] = bytes.gathered;
  memory.bytes[static_cast<size_t>(MemoryItem::kGradients)] = bytes.grads;
  memory.bytes[static_cast<size_t>(MemoryItem::kGradientStaging)] = bytes.staged + bytes.sent;
  constexpr auto kState = static_cast<size_t>(MemoryItem::kOptimizer);
  if (shape.offload.offloads_state()) {
    const HomeBytes home = offloaded_bytes(layout, shape.config.dtype, shape.optimizer == OptimizerKind::kAdamW,
                                           shape.offload, shape.device);
    memory.host_bytes[kState] = home.host;
    memory.disk_bytes = home.disk;
  } else {
    memory.bytes[kState] = Optimizer::state_bytes(layout, shape.config.dtype, shape.optimizer);
  }
}

void count_activations(const RunShape& shape, const StageChunk& chunk, const SlotCounts& slots, RankMemory& memory) {
  const StageRequest stage{.chunk = &chunk, .slots = slots};
  const PipelineBytes bytes = pipeline_bytes(std::span(&stage, 1), shape.batch, shape.num_microbatches);
  memory.bytes[static_cast<size_t>(MemoryItem::kActivations)] += static_cast<int64_t>(bytes.activations);
  memory.bytes[static_cast<size_t>(MemoryItem::kActivationGradients)] += static_cast<int64_t>(bytes.gradients);
  memory.bytes[static_cast<size_t>(MemoryItem::kWorkspace)] += static_cast<int64_t>(bytes.workspace);
  memory.host_bytes[static_cast<size_t>(MemoryItem::kBatches)] += static_cast<int64_t>(bytes.host);
}

int64_t count_nccl_scratch(const RunShape& shape, bool holds_vocabulary) {
  const GridShape& grid = shape.grid;
  std::vector<int> groups{grid.num_ranks(), grid.tensor, grid.pipeline, grid.data, grid.tensor * grid.pipeline};
  if (shape.num_instances > 1) {
    groups.push_back(grid.data / shape.num_instances);
    groups.push_back(shape.num_instances);
  }
  if (holds_vocabulary) {
    groups.push_back(grid.pipeline == 1 ? 1 : 2);
  }
  return kNcclScratchBytes * std::accumulate(groups.begin(), groups.end(), static_cast<int64_t>(groups.size()));
}

void count_communication(const RunShape& shape, bool holds_vocabulary, RankMemory& memory) {
  constexpr auto kItem = static_cast<size_t>(MemoryItem::kCommunication);
  if (shape.backend == DeviceBackend::kNccl) {
    memory.bytes[kItem] = memory.host_bytes[kItem] = count_nccl_scratch(shape, holds_vocabulary);
  } else if (shape.backend == DeviceBackend::kStaged) {
    memory.host_bytes[kItem] = 2 * static_cast<int64_t>(DeviceRequest().staging_bytes);
  }
}

// Buffers that are the same whatever the batch.
void count_buffers(const RunShape& shape, const StageChunk& chunk, int64_t num_tensors, RankMemory& memory) {
  memory.bytes[static_cast<size_t>(MemoryItem::kWorkspace)] +=
      update_cells(Optimizer::num_norm_blocks(chunk.parameters()), num_tensors, shape.grid.tensor).bytes() +
      kStepNumbersDeviceBytes;
  memory.bytes[static_cast<size_t>(MemoryItem::kGradientStaging)] +=
      TensorSum::most_packed(chunk.parameters_by_layer()) *
      static_cast<int64_t>(dtype_bytes(kernels::stat_dtype(shape.config.dtype)));
  memory.bytes[static_cast<size_t>(MemoryItem::kKernels)] =
      static_cast<int64_t>(kernels::kernel_workspace_bytes(shape.device));
  if (shape.device != DeviceKind::kCpu) {
    memory.host_bytes[static_cast<size_t>(MemoryItem::kCopies)] = CopyPiece::kBytes;
  }
  count_communication(shape, chunk.is_first() || chunk.is_last(), memory);
  Arena pinned;
  lay_out_step_numbers(pinned);
  memory.host_bytes[static_cast<size_t>(MemoryItem::kBatches)] += static_cast<int64_t>(pinned.used());
}

// Stages of as many blocks hold as much, but for the first and the last.
struct StageKind {
  std::unique_ptr<StageChunk> chunk;
  RankMemory parameters;  // gradients and optimizer state too
};

class StageKinds {
 public:
  explicit StageKinds(const RunShape& shape) : shape_(shape) {}

  const StageKind& of(int stage) {
    const bool is_first = stage == 0, is_last = stage + 1 == shape_.grid.pipeline;
    StageKind& kind = kinds_[{is_first, is_last, shape_.layers_per_stage[static_cast<size_t>(stage)]}];
    if (kind.chunk == nullptr) {
      kind.chunk = make_stage(shape_.config, shape_.layers_per_stage, stage, 0, shape_.grid.tensor);
      count_parameters(shape_, *kind.chunk, kind.parameters);
    }
    return kind;
  }

 private:
  const RunShape& shape_;
  std::map<std::tuple<bool, bool, int64_t>, StageKind> kinds_;
};

}  // namespace

int64_t RankMemory::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t RankMemory::host_total() const {
  return std::accumulate(host_bytes.begin(), host_bytes.end(), int64_t{0});
}

int64_t RankMemory::state() const {
  return std::accumulate(kStateItems.begin(), kStateItems.end(), int64_t{0},
                         [this](int64_t sum, MemoryItem item) { return sum + of(item); });
}

std::vector<SlotCounts> count_stage_slots(const RunShape& shape) {
  const Schedule training = training_schedule(shape), evaluation = evaluation_schedule(shape);
  std::vector<SlotCounts> stages;
  for (int stage = 0; stage < shape.grid.pipeline; ++stage) {
    stages.push_back(count_slots_of_both(training, evaluation, stage));
  }
  return stages;
}

std::vector<RankMemory> plan_memory(const RunShape& shape) {
  return plan_memory(shape, count_stage_slots(shape));
}

std::vector<RankMemory> plan_memory(const RunShape& shape, const std::vector<SlotCounts>& slots) {
  const auto num_tensors = static_cast<int64_t>(global_parameters(shape.config).size());
  StageKinds kinds(shape);
  std::vector<RankMemory> stages;
  for (int stage = 0; stage < shape.grid.pipeline; ++stage) {
    const StageKind& kind = kinds.of(stage);
    RankMemory& memory = stages.emplace_back(kind.parameters);
    count_buffers(shape, *kind.chunk, num_tensors, memory);
    count_activations(shape, *kind.chunk, slots[static_cast<size_t>(stage)], memory);
  }
  return stages;
}

int64_t least_memory(const RunShape& shape) {
  StageKinds kinds(shape);
  int64_t most = 0;
  for (int stage = 0; stage < shape.grid.pipeline; ++stage) {
    most = std::max(most, kinds.of(stage).parameters.limited(shape.device));
  }
  return most;
}

size_t fullest_stage(std::span<const RankMemory> stages, DeviceKind device) {
  const auto limited = [=](const RankMemory& stage) { return stage.limited(device); };
  return static_cast<size_t>(std::ranges::max_element(stages, {}, limited) - stages.begin());
}

LargestItem largest_item(const RankMemory& memory, DeviceKind device) {
  LargestItem largest;
  for (size_t item = 0; item < kNumMemoryItems; ++item) {
    const std::string name = memory_item_name(static_cast<MemoryItem>(item));
    if (memory.bytes[item] > largest.bytes) {
      largest = {name, memory.bytes[item]};
    }
    if (device == DeviceKind::kCpu && memory.host_bytes[item] > largest.bytes) {
      largest = {"host: " + name, memory.host_bytes[item]};
    }
  }
  return largest;
}

}  // namespace ashlar
