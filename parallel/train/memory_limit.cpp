#include "parallel/train/memory_limit.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "parallel/plan/plan_text.h"
#include "parallel/train/run_shape_of.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

// Most times as many ranks that are proposed.
constexpr int kMostGrowth = 64;

// What one setting is changed to.
struct Change {
  std::string flags;  // as on a command line; empty: as it is
  int cost = 0;       // see cheapest_fit()
  std::function<void(TrainOptions&)> apply = [](TrainOptions&) {};
  std::vector<std::string> left_out = {};  // flags of the run that are illegal beside these
};
// All values of one setting; the first is the one it has.
using Setting = std::vector<Change>;

struct Grid {
  int tensor = 1;
  int pipeline = 1;
  int world_size = 1;
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

Setting schedules_from(const TrainOptions& options) {
  Setting setting(1);
  if (options.pipeline_schedule != "1f1b") {
    setting.push_back({"--pipeline-schedule 1f1b", 1, [](TrainOptions& o) { o.pipeline_schedule = "1f1b"; }});
  }
  return setting;
}

Setting zero_stages_from(const TrainOptions& options) {
  Setting setting(1);
  constexpr std::array<int, 4> kCosts{0, 2, 5, 20};
  // In the words of whoever speaks Megatron's; in all that name a stage already, as they must agree.
  const bool names_strategy = !options.data_parallel_sharding_strategy.empty();
  const bool by_stage = options.zero_stage || !(names_strategy || options.use_distributed_optimizer);
  const bool by_strategy = names_strategy || !by_stage;
  constexpr std::array<const char*, 4> kStrategies{"no_shard", "optim", "optim_grads", "optim_grads_params"};
  for (int stage = zero_stage_of(options) + 1; stage <= 3; ++stage) {
    const auto at = static_cast<size_t>(stage);
    std::string flags = by_stage ? fmt::format("--zero-stage {}", stage) : "";
    if (by_strategy) {
      flags += fmt::format("{}--data-parallel-sharding-strategy {}", by_stage ? " " : "", kStrategies[at]);
    }
    setting.push_back({flags, kCosts[at], [=](TrainOptions& o) {
                         o.zero_stage = by_stage ? std::optional<int64_t>(stage) : std::nullopt;
                         o.data_parallel_sharding_strategy = by_strategy ? kStrategies[at] : "";
                       }});
  }
  return setting;
}

Setting recomputations_from(const TrainOptions& options) {
  Setting setting(1);
  if (options.recompute_granularity.empty()) {
    setting.push_back(
        {"--recompute-granularity selective", 3, [](TrainOptions& o) { o.recompute_granularity = "selective"; }});
  }
  if (options.recompute_granularity != "full") {
    Change& change = setting.emplace_back();
    change.flags = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1";
    change.cost = 30;
    change.apply = [](TrainOptions& o) {
      o.recompute_granularity = "full";
      o.recompute_method = "uniform";
      o.recompute_num_layers = 1;
      o.recompute_activations = false;
      o.recompute_modules.clear();
    };
    if (options.recompute_activations) {
      change.left_out.emplace_back("--recompute-activations");
    }
    if (!options.recompute_modules.empty()) {
      change.left_out.emplace_back("--recompute-modules");
    }
  }
  return setting;
}

Setting micro_batches_from(const TrainOptions& options) {
  Setting setting(1);
  for (int64_t size = options.micro_batch_size - 1; size >= 1; --size) {
    if (options.micro_batch_size % size == 0) {
      setting.push_back({fmt::format("--micro-batch-size {}", size), 8 + static_cast<int>(setting.size()) * 4,
                         [=](TrainOptions& o) { o.micro_batch_size = size; }});
    }
  }
  return setting;
}

Setting precisions_from(const TrainOptions& options) {
  Setting setting(1);
  if (!options.bf16 && !options.fp16) {
    setting.push_back({"--bf16", 100, [](TrainOptions& o) { o.bf16 = true; }});
  }
  return setting;
}

Setting parts_of_rows_from(const TrainOptions& options) {
  Setting setting(1);
  if (!options.sequence_parallel) {
    setting.push_back({"--sequence-parallel", 2, [](TrainOptions& o) { o.sequence_parallel = true; }});
  }
  return setting;
}

Setting homes_from(const TrainOptions& options, DeviceKind device) {
  Setting setting(1);
  const std::string now = offload_optimizer_of(options);
  if (now == "none" && device != DeviceKind::kCpu) {
    setting.push_back(
        {"--offload-optimizer-device cpu", 300, [](TrainOptions& o) { o.offload_optimizer_device = "cpu"; }});
  }
  if (now != "nvme") {
    Change& change = setting.emplace_back();
    change.flags = "--offload-optimizer-device nvme --nvme-path DIR";
    change.cost = 400;
    change.apply = [](TrainOptions& o) {
      o.offload_optimizer_device = "nvme";
      o.optimizer_cpu_offload = false;
      o.nvme_path = "DIR";
    };
    if (options.optimizer_cpu_offload) {
      change.left_out.emplace_back("--optimizer-cpu-offload");
    }
  }
  return setting;
}

std::vector<Setting> settings_from(const TrainOptions& options, DeviceKind device) {
  return {schedules_from(options),      zero_stages_from(options),   parts_of_rows_from(options),
          recomputations_from(options), micro_batches_from(options), precisions_from(options),
          homes_from(options, device)};
}

// The stage whose ranks are nearest to a limit.
std::vector<RankMemory>::const_iterator most_limited(const std::vector<RankMemory>& stages, DeviceKind device) {
  return std::ranges::max_element(stages, {}, [=](const RankMemory& stage) { return stage.limited(device); });
}

using Candidate = std::vector<size_t>;  // by setting: which of its values

std::vector<Candidate> by_cost(const std::vector<Setting>& settings) {
  std::vector<Candidate> all{Candidate()};
  for (const Setting& setting : settings) {
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
    for (const Grid& grid : grids_from(options_)) {
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
  std::optional<int64_t> fitting_bytes(const Candidate& at, const Grid& grid) {
    const auto options = with(at, grid);
    if (!options) {
      return std::nullopt;
    }
    const RunShape shape = run_shape_of(*options, device_);
    if (least_memory(shape) > limit_bytes_) {
      return std::nullopt;
    }
    const std::vector<RankMemory> stages = plan_memory(shape, slots_of(shape));
    const int64_t bytes = most_limited(stages, shape.device)->limited(shape.device);
    return bytes <= limit_bytes_ ? std::optional(bytes) : std::nullopt;
  }

  // Most grids are out of the question. A look at those candidates says so whose every setting is as it is or at its
  // end, where it takes least: half of what takes less of one kind takes more of another.
  bool can_fit(const std::vector<Candidate>& candidates, const Grid& grid) {
    return std::ranges::any_of(candidates, [&](const Candidate& at) {
      for (size_t setting = 0; setting < at.size(); ++setting) {
        if (at[setting] != 0 && at[setting] + 1 != settings_[setting].size()) {
          return false;
        }
      }
      return fitting_bytes(at, grid).has_value();
    });
  }

  std::optional<TrainOptions> with(const Candidate& at, const Grid& grid) const {
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

  std::string flags_of(const Candidate& at, const Grid& grid) const {
    std::vector<std::string> flags;
    for (size_t setting = 0; setting < at.size(); ++setting) {
      if (at[setting] > 0) {
        flags.push_back(settings_[setting][at[setting]].flags);
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
  std::vector<Setting> settings_;
  std::map<std::tuple<std::string, int, int>, std::vector<SlotCounts>> slots_;
};

}  // namespace

std::optional<MemoryChange> cheapest_fit(const TrainOptions& options, const DeviceRequest& device,
                                         int64_t limit_bytes) {
  return Search(options, device, limit_bytes).run();
}

void check_memory_limit(const TrainOptions& options, const DeviceRequest& device, TableIs table) {
  if (options.memory_limit_gb == 0) {
    return;
  }
  const auto limit_bytes = static_cast<int64_t>(options.memory_limit_gb * kBytesOfGb);
  const RunShape shape = run_shape_of(options, device);
  const std::vector<RankMemory> stages = plan_memory(shape);
  const auto fullest = most_limited(stages, shape.device);
  const RankMemory& memory = *fullest;
  const int64_t needed = memory.limited(shape.device);
  if (needed <= limit_bytes) {
    return;
  }
  const auto change = cheapest_fit(options, device, limit_bytes);
  const MemoryItem largest = memory.largest();
  const auto stage = fullest - stages.begin();
  throw Error(
      ErrorCode::kUsage,
      fmt::format(
          "--memory-limit-gb {}: a rank of stage {} needs {}{}\n{}largest item: {}, {} on stage {}\n{}",
          options.memory_limit_gb, stage, memory_text(needed),
          needed > memory.total() ? ", with what lies in host memory" : "",
          table == TableIs::kNew ? memory_table(shape, stages) : std::string(), memory_item_name(largest),
          memory_text(memory.of(largest)), stage,
          change ? fmt::format(
                       "cheapest change that fits: {}{} (then {})", change->flags,
                       change->left_out.empty() ? "" : fmt::format(" without {}", fmt::join(change->left_out, " ")),
                       memory_text(change->bytes))
                 : fmt::format("no change of --pipeline-schedule, --zero-stage, --sequence-parallel, "
                               "--recompute-granularity, --micro-batch-size, --bf16, --offload-optimizer-device and "
                               "the grid, on up to {} times as many ranks, fits",
                               kMostGrowth)));
}

}  // namespace ashlar
