#include "parallel/train/memory_limit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>
#include <vector>

#include "parallel/plan/plan_text.h"
#include "parallel/train/memory_changes.h"
#include "parallel/train/run_shape_of.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

using Candidate = std::vector<size_t>;  // by setting: which of its values

std::vector<Candidate> by_cost(const std::vector<SettingValues>& settings) {
  std::vector<Candidate> all{Candidate()};
  for (const SettingValues& setting : settings) {
    std::vector<Candidate> longer;
    for (const Candidate& at : all) {
      for (size_t value = 0; value < setting.size(); ++value) {
        longer.push_back(at);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  const auto cost = [&](const Candidate& at) {
    int sum = 0;
    for (size_t setting = 0; setting < at.size(); ++setting) {
      sum += settings[setting][at[setting]].cost;
    }
    return sum;
  };
  std::ranges::stable_sort(all, {}, cost);
  return all;
}

// Looks at one candidate after the other; schedules are walked once.
class Search {
 public:
  Search(const TrainOptions& options, const DeviceRequest& device, int64_t limit_bytes)
      : options_(options), device_(device), limit_bytes_(limit_bytes), settings_(settings_from(options, device.kind)) {}

  std::optional<MemoryChange> run() {
    const std::vector<Candidate> candidates = by_cost(settings_);
    for (const GridChoice& grid : grids_from(options_)) {
      if (!can_fit(candidates, grid)) {
        continue;
      }
      for (const Candidate& at : candidates) {
        if (const auto bytes = fitting_bytes(at, grid)) {
          return MemoryChange{.flags = flags_of(at, grid), .left_out = left_out(at), .bytes = *bytes};
        }
      }
    }
    return std::nullopt;
  }

 private:
  // Bytes of the fullest rank; nothing when it does not fit or the settings are not legal together.
  std::optional<int64_t> fitting_bytes(const Candidate& at, const GridChoice& grid) {
    const auto options = with(at, grid);
    if (!options) {
      return std::nullopt;
    }
    const RunShape shape = run_shape_of(*options, device_);
    if (least_of(shape) > limit_bytes_) {
      return std::nullopt;
    }
    // What a micro-batch alone does not fit into needs no walk over a schedule, which takes longest here.
    const std::vector<SlotCounts> one_each(static_cast<size_t>(shape.grid.pipeline), SlotCounts{.activations = 1});
    if (fullest_bytes(shape, one_each) > limit_bytes_) {
      return std::nullopt;
    }
    const int64_t bytes = fullest_bytes(shape, slots_of(shape));
    return bytes <= limit_bytes_ ? std::optional(bytes) : std::nullopt;
  }

  static int64_t fullest_bytes(const RunShape& shape, const std::vector<SlotCounts>& slots) {
    const std::vector<RankMemory> stages = plan_memory(shape, slots);
    return stages[fullest_stage(stages, shape.device)].limited(shape.device);
  }

  // Asked again for every other micro-batch, schedule and recomputation.
  int64_t least_of(const RunShape& shape) {
    const Sharding& sharding = shape.sharding;
    const auto [found, is_new] =
        least_.try_emplace({shape.grid.tensor, shape.grid.pipeline, shape.grid.data,
                            static_cast<int>(shape.config.dtype), sharding.zero_stage, sharding.num_shards,
                            sharding.each_microbatch, sharding.grads_in_bf16, static_cast<int>(shape.offload.state)},
                           0);
    if (is_new) {
      found->second = least_memory(shape);
    }
    return found->second;
  }

  // Most grids are out of the question, which a look at some candidates says: of a setting of many values (sizes, which
  // take least at their end) those where it is as it is or at its end. Full recomputation can take more than selective.
  bool can_fit(const std::vector<Candidate>& candidates, const GridChoice& grid) {
    return std::ranges::any_of(candidates, [&](const Candidate& at) {
      for (size_t setting = 0; setting < at.size(); ++setting) {
        constexpr size_t kFewValues = 3;
        const size_t count = settings_[setting].size();
        if (count > kFewValues && at[setting] != 0 && at[setting] + 1 != count) {
          return false;
        }
      }
      return fitting_bytes(at, grid).has_value();
    });
  }

  std::optional<TrainOptions> with(const Candidate& at, const GridChoice& grid) const {
    TrainOptions changed = options_;
    for (size_t setting = 0; setting < at.size(); ++setting) {
      settings_[setting][at[setting]].apply(changed);
    }
    changed.tensor_model_parallel_size = grid.tensor;
    changed.pipeline_model_parallel_size = grid.pipeline;
    changed.world_size = grid.world_size;
    if (grid.tensor == 1 && changed.sequence_parallel != options_.sequence_parallel) {
      return std::nullopt;  // changes nothing there
    }
    try {
      return resolve_options(changed, grid.world_size);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  const std::vector<SlotCounts>& slots_of(const RunShape& shape) {
    const auto [found, is_new] =
        slots_.try_emplace({shape.schedule, shape.grid.pipeline, shape.num_microbatches}, std::vector<SlotCounts>());
    if (is_new) {
      found->second = count_stage_slots(shape);
    }
    return found->second;
  }

  std::string flags_of(const Candidate& at, const GridChoice& grid) const {
    std::vector<std::string> flags;
    for (size_t setting = 0; setting < at.size(); ++setting) {
      if (const std::string& text = settings_[setting][at[setting]].flags; !text.empty()) {
        flags.push_back(text);
      }
    }
    if (grid.tensor != options_.tensor_model_parallel_size) {
      flags.push_back(fmt::format("--tensor-model-parallel-size {}", grid.tensor));
    }
    if (grid.pipeline != options_.pipeline_model_parallel_size) {
      flags.push_back(fmt::format("--pipeline-model-parallel-size {}", grid.pipeline));
    }
    const std::string ranks =
        grid.world_size != options_.world_size ? fmt::format(" on {} ranks", grid.world_size) : std::string();
    return fmt::format("{}{}", fmt::join(flags, " "), ranks);
  }

  std::vector<std::string> left_out(const Candidate& at) const {
    std::vector<std::string> flags;
    for (size_t setting = 0; setting < at.size(); ++setting) {
      std::ranges::copy(settings_[setting][at[setting]].left_out, std::back_inserter(flags));
    }
    return flags;
  }

  const TrainOptions& options_;
  const DeviceRequest& device_;
  int64_t limit_bytes_;
  std::vector<SettingValues> settings_;
  std::map<std::tuple<std::string, int, int>, std::vector<SlotCounts>> slots_;
  std::map<std::array<int, 9>, int64_t> least_;
};

}  // namespace

std::string MemoryChange::text() const {
  std::vector<std::string> parts;
  if (!flags.empty()) {
    parts.push_back(flags);
  }
  if (!left_out.empty()) {
    parts.push_back(fmt::format("without {}", fmt::join(left_out, " ")));
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

std::optional<MemoryChange> cheapest_fit(const TrainOptions& options, const DeviceRequest& device,
                                         int64_t limit_bytes) {
  return Search(options, device, limit_bytes).run();
}

void check_memory_limit(const TrainOptions& options, const DeviceRequest& device, TableIs table) {
  if (options.memory_limit_gb == 0) {
    return;
  }
  const auto limit_bytes = std::llround(options.memory_limit_gb * kBytesOfGb);
  const RunShape shape = run_shape_of(options, device);
  const std::vector<RankMemory> stages = plan_memory(shape);
  const size_t stage = fullest_stage(stages, shape.device);
  const RankMemory& memory = stages[stage];
  const int64_t needed = memory.limited(shape.device);
  if (needed <= limit_bytes) {
    return;
  }
  const auto change = cheapest_fit(options, device, limit_bytes);
  const LargestItem largest = largest_item(memory, shape.device);
  throw Error(ErrorCode::kUsage,
              fmt::format("--memory-limit-gb {}: a rank of stage {} needs {}{}\n{}largest item: {}, {} on stage {}\n{}",
                          options.memory_limit_gb, stage, memory_text(needed),
                          needed > memory.total() ? ", with what lies in host memory" : "",
                          table == TableIs::kNew ? memory_table(shape, stages) : std::string(), largest.name,
                          memory_text(largest.bytes), stage,
                          change ? fmt::format("cheapest change that fits: {} (then {})", change->text(),
                                               memory_text(change->bytes))
                                 : fmt::format("no change of --pipeline-schedule, --zero-stage, --sequence-parallel, "
                                               "--recompute-granularity, --micro-batch-size, --bf16, --grad-reduce, "
                                               "--num-distributed-optimizer-instances, --offload-optimizer-device and "
                                               "of the tensor and pipeline sizes, up to {} times theirs, fits",
                                               kMostGrowth)));
}

}  // namespace ashlar
