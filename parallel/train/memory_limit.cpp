#include "parallel/train/memory_limit.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "parallel/plan/plan_text.h"
#include "parallel/train/run_shape_of.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

// Most times as many ranks that are proposed.
constexpr int kMostGrowth = 64;

struct Grid {
  int tensor = 1;
  int pipeline = 1;
  int world_size = 1;
};

// What may change; at the front of each the value as it is. The further back, the dearer.
struct Choices {
  std::vector<std::string> schedules;
  std::vector<int64_t> micro_batches;
  std::vector<bool> bf16;
  std::vector<Grid> grids;
};

// Indices into Choices.
struct Candidate {
  size_t schedule = 0, micro_batch = 0, bf16 = 0, grid = 0;

  auto cost() const {
    const int num_changes = (schedule > 0) + (micro_batch > 0) + (bf16 > 0);
    return std::tuple(grid, num_changes, bf16, micro_batch, schedule);
  }
};

std::vector<Grid> grids_from(const TrainOptions& options) {
  const int tensor = options.tensor_model_parallel_size;
  const int pipeline = options.pipeline_model_parallel_size;
  const int world_size = options.world_size;
  std::vector<Grid> same, more;
  for (int t = tensor; t <= world_size; ++t) {
    for (int p = pipeline; t * p <= world_size; ++p) {
      if (world_size % (t * p) == 0 && t % tensor == 0 && p % pipeline == 0 && t * p > tensor * pipeline) {
        same.push_back({t, p, world_size});
      }
    }
  }
  for (int t = 1; t <= kMostGrowth; t *= 2) {
    for (int p = 1; t * p <= kMostGrowth; p *= 2) {
      more.push_back({tensor * t, pipeline * p, world_size * t * p});
    }
  }
  const auto size = [](const Grid& grid) { return std::pair(grid.tensor * grid.pipeline, grid.tensor); };
  std::ranges::sort(same, {}, size);
  std::ranges::sort(more, {}, size);  // the grid as it is comes first
  std::vector<Grid> all{more.front()};
  all.insert(all.end(), same.begin(), same.end());
  all.insert(all.end(), more.begin() + 1, more.end());
  return all;
}

Choices choices_of(const TrainOptions& options) {
  Choices choices;
  choices.schedules = {options.pipeline_schedule};
  if (options.pipeline_schedule != "1f1b") {
    choices.schedules.push_back("1f1b");
  }
  for (int64_t size = options.micro_batch_size; size >= 1; --size) {
    if (options.micro_batch_size % size == 0) {
      choices.micro_batches.push_back(size);
    }
  }
  choices.bf16 = {options.bf16};
  if (!options.bf16 && !options.fp16) {
    choices.bf16.push_back(true);
  }
  choices.grids = grids_from(options);
  return choices;
}

// Looks at one candidate after the other; schedules are walked once.
class Search {
 public:
  Search(const TrainOptions& options, const DeviceRequest& device, int64_t limit_bytes)
      : options_(options), device_(device), limit_bytes_(limit_bytes), choices_(choices_of(options)) {}

  const Choices& choices() const { return choices_; }

  // Bytes of the fullest rank; nothing when it does not fit or the settings are not legal together.
  std::optional<int64_t> fitting_bytes(const Candidate& at) {
    const auto options = with(at);
    if (!options) {
      return std::nullopt;
    }
    const RunShape shape = run_shape_of(*options, device_);
    if (least_memory(shape) > limit_bytes_) {
      return std::nullopt;
    }
    const std::vector<RankMemory> stages = plan_memory(shape, slots_of(shape));
    const int64_t bytes = stages[fullest_stage(stages)].total();
    return bytes <= limit_bytes_ ? std::optional(bytes) : std::nullopt;
  }

  // Most grids are out of the question, and a look at what fits best there says so: 1f1b, single samples, and bf16 or
  // not, which takes two bytes more a parameter and fewer an activation.
  bool can_fit(size_t grid) {
    const auto [found, is_new] = grid_can_fit_.try_emplace(grid, false);
    for (size_t bf16 = 0; is_new && bf16 < choices_.bf16.size(); ++bf16) {
      found->second = found->second || fitting_bytes({.schedule = choices_.schedules.size() - 1,
                                                      .micro_batch = choices_.micro_batches.size() - 1,
                                                      .bf16 = bf16,
                                                      .grid = grid});
    }
    return found->second;
  }

 private:
  std::optional<TrainOptions> with(const Candidate& at) const {
    const Grid& grid = choices_.grids[at.grid];
    TrainOptions changed = options_;
    changed.pipeline_schedule = choices_.schedules[at.schedule];
    changed.micro_batch_size = choices_.micro_batches[at.micro_batch];
    changed.bf16 = choices_.bf16[at.bf16];
    changed.allow_tf32 = changed.allow_tf32 && !changed.bf16;
    changed.tensor_model_parallel_size = grid.tensor;
    changed.pipeline_model_parallel_size = grid.pipeline;
    changed.world_size = grid.world_size;
    try {
      return resolve_options(changed, grid.world_size);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  const std::vector<StageSlots>& slots_of(const RunShape& shape) {
    const auto [found, is_new] =
        slots_.try_emplace({shape.schedule, shape.grid.pipeline, shape.num_microbatches}, std::vector<StageSlots>());
    if (is_new) {
      found->second = count_stage_slots(shape.schedule, shape.grid.pipeline, shape.num_microbatches);
    }
    return found->second;
  }

  const TrainOptions& options_;
  const DeviceRequest& device_;
  int64_t limit_bytes_;
  Choices choices_;
  std::map<size_t, bool> grid_can_fit_;
  std::map<std::tuple<std::string, int, int>, std::vector<StageSlots>> slots_;
};

std::string flags_of(const Choices& choices, const Candidate& at) {
  std::vector<std::string> flags;
  if (at.schedule > 0) {
    flags.push_back("--pipeline-schedule " + choices.schedules[at.schedule]);
  }
  if (at.micro_batch > 0) {
    flags.push_back(fmt::format("--micro-batch-size {}", choices.micro_batches[at.micro_batch]));
  }
  if (at.bf16 > 0) {
    flags.emplace_back("--bf16");
  }
  const Grid& before = choices.grids.front();
  const Grid& grid = choices.grids[at.grid];
  if (grid.tensor != before.tensor) {
    flags.push_back(fmt::format("--tensor-model-parallel-size {}", grid.tensor));
  }
  if (grid.pipeline != before.pipeline) {
    flags.push_back(fmt::format("--pipeline-model-parallel-size {}", grid.pipeline));
  }
  const std::string ranks =
      grid.world_size != before.world_size ? fmt::format(" on {} ranks", grid.world_size) : std::string();
  return fmt::format("{}{}", fmt::join(flags, " "), ranks);
}

std::vector<Candidate> by_cost(const Choices& choices) {
  std::vector<Candidate> all;
  Candidate at;
  for (at.grid = 0; at.grid < choices.grids.size(); ++at.grid) {
    for (at.bf16 = 0; at.bf16 < choices.bf16.size(); ++at.bf16) {
      for (at.micro_batch = 0; at.micro_batch < choices.micro_batches.size(); ++at.micro_batch) {
        for (at.schedule = 0; at.schedule < choices.schedules.size(); ++at.schedule) {
          all.push_back(at);
        }
      }
    }
  }
  std::ranges::sort(all, {}, &Candidate::cost);
  return all;
}

}  // namespace

std::optional<MemoryChange> cheapest_fit(const TrainOptions& options, const DeviceRequest& device,
                                         int64_t limit_bytes) {
  Search search(options, device, limit_bytes);
  for (const Candidate& at : by_cost(search.choices())) {
    if (!search.can_fit(at.grid)) {
      continue;
    }
    if (const auto bytes = search.fitting_bytes(at)) {
      return MemoryChange{flags_of(search.choices(), at), *bytes};
    }
  }
  return std::nullopt;
}

void check_memory_limit(const TrainOptions& options, const DeviceRequest& device) {
  if (options.memory_limit_gb == 0) {
    return;
  }
  const auto limit_bytes = static_cast<int64_t>(options.memory_limit_gb * kBytesOfGb);
  const RunShape shape = run_shape_of(options, device);
  const std::vector<RankMemory> stages = plan_memory(shape);
  const size_t fullest = fullest_stage(stages);
  const RankMemory& memory = stages[fullest];
  if (memory.total() <= limit_bytes) {
    return;
  }
  const auto change = cheapest_fit(options, device, limit_bytes);
  const MemoryItem largest = memory.largest();
  throw Error(
      ErrorCode::kUsage,
      fmt::format(
          "--memory-limit-gb {}: a rank of stage {} needs {}\n{}largest item: {}, {} on stage {}\n{}",
          options.memory_limit_gb, fullest, memory_text(memory.total()), memory_table(shape, stages),
          memory_item_name(largest), memory_text(memory.of(largest)), fullest,
          change ? fmt::format("cheapest change that fits: {} (then {})", change->flags, memory_text(change->bytes))
                 : fmt::format("no change of --pipeline-schedule, --micro-batch-size, --bf16 and the grid, on "
                               "up to {} times as many ranks, fits",
                               kMostGrowth)));
}

}  // namespace ashlar
