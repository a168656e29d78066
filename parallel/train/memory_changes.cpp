#include "parallel/train/memory_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

namespace ashlar {
namespace {

SettingValues schedules_from(const TrainOptions& options) {
  SettingValues setting(1);
  if (options.pipeline_schedule != "1f1b") {
    setting.push_back({"--pipeline-schedule 1f1b", 1, [](TrainOptions& o) { o.pipeline_schedule = "1f1b"; }});
  }
  return setting;
}

SettingValues zero_stages_from(const TrainOptions& options) {
  SettingValues setting(1);
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

SettingValues recomputations_from(const TrainOptions& options) {
  SettingValues setting(1);
  if (options.recompute_granularity.empty()) {
    setting.push_back(
        {"--recompute-granularity selective", 3, [](TrainOptions& o) { o.recompute_granularity = "selective"; }});
  }
  if (options.recompute_granularity != "full") {
    SettingChange& change = setting.emplace_back();
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

SettingValues micro_batches_from(const TrainOptions& options) {
  SettingValues setting(1);
  for (int64_t size = options.micro_batch_size - 1; size >= 1; --size) {
    if (options.micro_batch_size % size == 0) {
      setting.push_back({fmt::format("--micro-batch-size {}", size), 8 + static_cast<int>(setting.size()) * 4,
                         [=](TrainOptions& o) { o.micro_batch_size = size; }});
    }
  }
  return setting;
}

SettingValues precisions_from(const TrainOptions& options) {
  SettingValues setting(1);
  if (!options.bf16 && !options.fp16) {
    setting.push_back({"--bf16", 100, [](TrainOptions& o) { o.bf16 = true; }});
  }
  return setting;
}

SettingValues parts_of_rows_from(const TrainOptions& options) {
  SettingValues setting(1);
  if (!options.sequence_parallel) {
    setting.push_back({"--sequence-parallel", 2, [](TrainOptions& o) { o.sequence_parallel = true; }});
  }
  return setting;
}

SettingValues groups_from(const TrainOptions& options) {
  SettingValues setting(1);
  if (options.num_distributed_optimizer_instances > 1) {
    setting.push_back({"--num-distributed-optimizer-instances 1", 4,
                       [](TrainOptions& o) { o.num_distributed_optimizer_instances = 1; }});
  }
  return setting;
}

SettingValues reductions_from(const TrainOptions& options) {
  SettingValues setting(1);
  if (options.grad_reduce == "step") {
    setting.push_back({"--grad-reduce micro-batch", 5, [](TrainOptions& o) { o.grad_reduce = "micro-batch"; }});
  }
  return setting;
}

SettingValues sums_from(const TrainOptions& options) {
  SettingValues setting(1);
  if (options.grad_reduce_in_bf16) {
    setting.push_back({"", 3, [](TrainOptions& o) { o.grad_reduce_in_bf16 = false; }, {"--grad-reduce-in-bf16"}});
  }
  return setting;
}

SettingValues homes_from(const TrainOptions& options, DeviceKind device) {
  SettingValues setting(1);
  const std::string now = offload_optimizer_of(options);
  if (now == "none" && device != DeviceKind::kCpu) {
    setting.push_back(
        {"--offload-optimizer-device cpu", 300, [](TrainOptions& o) { o.offload_optimizer_device = "cpu"; }});
  }
  if (now != "nvme") {
    SettingChange& change = setting.emplace_back();
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

}  // namespace

std::vector<SettingValues> settings_from(const TrainOptions& options, DeviceKind device) {
  return {schedules_from(options),      zero_stages_from(options),   parts_of_rows_from(options),
          recomputations_from(options), micro_batches_from(options), precisions_from(options),
          groups_from(options),         reductions_from(options),    sums_from(options),
          homes_from(options, device)};
}

std::vector<GridChoice> grids_from(const TrainOptions& options) {
  const int tensor = options.tensor_model_parallel_size;
  const int pipeline = options.pipeline_model_parallel_size;
  const int world_size = options.world_size;
  std::vector<GridChoice> same, more;
  for (int t = tensor; t <= world_size; ++t) {
    for (int p = pipeline; t * p <= world_size; ++p) {
      if (world_size % (t * p) == 0 && t % tensor == 0 && p % pipeline == 0 && t * p > tensor * pipeline) {
        same.push_back({t, p, world_size});
      }
    }
  }
  // Tensor sizes that divide the heads; stages of as many layers each, or powers of two as often as they were.
  const auto divides = [](int64_t size, int64_t whole) { return size <= whole && whole % size == 0; };
  for (int t = 1; t <= kMostGrowth; ++t) {
    for (int p = 1; t * p <= kMostGrowth; ++p) {
      const bool is_even = divides(int64_t{pipeline} * p, options.num_layers) || std::has_single_bit(unsigned(p));
      if (divides(int64_t{tensor} * t, options.num_attention_heads) && is_even) {
        more.push_back({tensor * t, pipeline * p, world_size * t * p});
      }
    }
  }
  const auto size = [](const GridChoice& grid) { return std::pair(grid.tensor * grid.pipeline, grid.tensor); };
  std::ranges::sort(same, {}, size);
  std::ranges::sort(more, {}, size);  // the grid as it is comes first
  std::vector<GridChoice> all{more.front()};
  all.insert(all.end(), same.begin(), same.end());
  all.insert(all.end(), more.begin() + 1, more.end());
  return all;
}

}  // namespace ashlar
