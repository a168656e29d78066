// The small pure functions of options.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "parallel/train/flags.h"
#include "parallel/train/options.h"
#include "runtime/base/error.h"

namespace ashlar {

std::vector<int64_t> split_layers(int64_t num_layers, int num_stages, std::optional<int64_t> first,
                                  std::optional<int64_t> last) {
  REQUIRE(num_layers >= num_stages, ErrorCode::kUsage,
          "--pipeline-model-parallel-size {} has more stages than --num-layers {} has layers; nearest legal "
          "--pipeline-model-parallel-size: {}",
          num_stages, num_layers, num_layers);
  if (num_stages == 1) {
    REQUIRE(first.value_or(num_layers) == num_layers && last.value_or(num_layers) == num_layers, ErrorCode::kUsage,
            "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers need "
            "--pipeline-model-parallel-size of at least 2: one stage holds all {} layers",
            num_layers);
    return {num_layers};
  }
  const int64_t fixed = first.value_or(0) + last.value_or(0);
  const int64_t others = num_stages - (first ? 1 : 0) - (last ? 1 : 0);
  const int64_t rest = num_layers - fixed;
  REQUIRE(
      others == 0 ? rest == 0 : rest >= others, ErrorCode::kUsage,
      "--decoder-first-pipeline-num-layers {} and --decoder-last-pipeline-num-layers {} leave {} of --num-layers {} "
      "for the {} other stages of --pipeline-model-parallel-size {}; {}",
      first ? fmt::format("{}", *first) : "(not given)", last ? fmt::format("{}", *last) : "(not given)", rest,
      num_layers, others, num_stages,
      others == 0 ? "the two must add up to --num-layers" : fmt::format("at least {} must be left", others));
  std::vector<int64_t> layers;
  if (first) {
    layers.push_back(*first);
  }
  for (int64_t i = 0; i < others; ++i) {
    layers.push_back(rest / others + (i < rest % others ? 1 : 0));
  }
  if (last) {
    layers.push_back(*last);
  }
  return layers;
}

int zero_stage_of(const TrainOptions& options) {
  std::vector<std::pair<std::string, int64_t>> given;
  if (options.zero_stage) {
    given.push_back({fmt::format("--zero-stage {}", *options.zero_stage), *options.zero_stage});
  }
  // Megatron reads the strategy with --use-megatron-fsdp only; its scripts give no_shard, the default there, beside
  // --use-distributed-optimizer, and mean the latter.
  const bool is_megatrons_default = options.data_parallel_sharding_strategy == "no_shard" &&
                                    options.use_distributed_optimizer && !options.use_megatron_fsdp &&
                                    !options.zero_stage;
  if (!options.data_parallel_sharding_strategy.empty() && !is_megatrons_default) {
    constexpr std::array<std::string_view, 4> kStrategies{"no_shard", "optim", "optim_grads", "optim_grads_params"};
    given.push_back({"--data-parallel-sharding-strategy " + options.data_parallel_sharding_strategy,
                     std::ranges::find(kStrategies, options.data_parallel_sharding_strategy) - kStrategies.begin()});
  }
  // Megatron's scripts give these two beside a strategy, which then says what they mean.
  const std::pair<const char*, int64_t> implied[] = {{"--use-distributed-optimizer", 1}, {"--use-megatron-fsdp", 3}};
  const bool is_given[] = {options.use_distributed_optimizer, options.use_megatron_fsdp};
  const bool is_named = !given.empty();
  for (size_t at = std::size(implied); at-- > 0;) {
    if (is_given[at] && (given.empty() || (is_named && given[0].second == 0))) {
      given.push_back(implied[at]);
    }
  }
  for (size_t at = 1; at < given.size(); ++at) {
    REQUIRE(given[at].second == given[0].second, ErrorCode::kUsage,
            "{} and {} contradict each other (they are --zero-stage {} and {}): give one of them", given[0].first,
            given[at].first, given[0].second, given[at].second);
  }
  return given.empty() ? 0 : static_cast<int>(given[0].second);
}

bool reduces_each_microbatch(const TrainOptions& options) {
  return options.grad_reduce.empty() ? zero_stage_of(options) >= 2 : options.grad_reduce == "micro-batch";
}

std::string sharding_text(const TrainOptions& options) {
  constexpr std::array<const char*, 4> kWhat{"nothing", "optimizer state", "optimizer state and gradients",
                                             "optimizer state, gradients and parameters"};
  const int stage = zero_stage_of(options);
  const int64_t instances = options.num_distributed_optimizer_instances;
  const int64_t ranks = options.data_parallel_size / instances;
  const bool each = reduces_each_microbatch(options);
  const std::string offload = offload_optimizer_of(options);
  std::string text = fmt::format(
      "sharding: ZeRO-{} over {} data rank{}{}: {}; gradients reduced {}{}", stage, ranks, ranks == 1 ? "" : "s",
      instances > 1 ? fmt::format(", in {} groups", instances) : "", kWhat[static_cast<size_t>(stage)],
      each ? fmt::format("after every micro-batch ({} a step)", options.num_microbatches) : std::string("once a step"),
      options.grad_reduce_in_bf16 ? " in bf16" : "");
  if (stage >= 2 && !each) {
    text += ", whole until then";
  }
  if (!options.recompute_granularity.empty()) {
    text += fmt::format("; recompute {}", options.recompute_granularity);
  }
  const auto add_place = [&](const char* what, const std::string& device) {
    if (device != "none") {
      text += fmt::format("; {} in {}", what, device == "cpu" ? "host memory" : "files");
    }
  };
  add_place("optimizer state", offload);
  add_place("parameters", offload_param_of(options));
  return text;
}

int64_t padded_vocab_size(int64_t vocab_size, int64_t divisible_by, int tensor_size) {
  const int64_t multiple = divisible_by * tensor_size;
  return (vocab_size + multiple - 1) / multiple * multiple;
}

std::string offload_optimizer_of(const TrainOptions& options) {
  const std::string& device = options.offload_optimizer_device;
  REQUIRE(!options.optimizer_cpu_offload || device.empty() || device == "cpu", ErrorCode::kUsage,
          "--optimizer-cpu-offload and --offload-optimizer-device {} contradict each other (the first is "
          "--offload-optimizer-device cpu): give one of them",
          device);
  return options.optimizer_cpu_offload ? "cpu" : device.empty() ? "none" : device;
}

std::string offload_param_of(const TrainOptions& options) {
  return options.offload_param_device.empty() ? "none" : options.offload_param_device;
}

std::optional<TestPoint> parse_test_point(const std::string& flag, const std::string& text) {
  if (text.empty()) {
    return std::nullopt;
  }
  TestPoint point;
  std::vector<std::string> seen;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string part = text.substr(start, comma - start);
    const size_t equals = std::min(part.find('='), part.size());
    const std::string key = part.substr(0, equals), value = part.substr(std::min(equals + 1, part.size()));
    const auto number = parse_integer(value);
    const bool natural = number && *number >= 0;
    bool known = true;
    if (key == "rank" && natural && *number < 1'000'000) {
      point.rank = static_cast<int>(*number);
    } else if (key == "step" && natural && (flag == "test-hang" || flag == "test-nan" || flag == "test-overflow")) {
      point.step = *number;
    } else if (key == "point" && flag == "test-hang") {
      point.point = value;
      known = value == "all-reduce" || value == "receive" || value == "checkpoint";
    } else if (key == "tensor" && flag == "test-overflow") {
      point.tensor = value;
      known = !value.empty();
    } else if (key == "bytes" && natural && (flag == "test-write-fault" || flag == "test-offload-fault")) {
      point.bytes = *number;
    } else if (key == "file" && flag == "test-offload-fault") {
      point.file = value;
      known = value == "optimizer" || value == "param";
    } else if (key == "kill" && (value == "0" || value == "1") && flag == "test-write-fault") {
      point.kill = value == "1";
    } else {
      known = false;
    }
    REQUIRE(known, ErrorCode::kUsage, "--{} expects {}, got '{}' ('{}' has no place there)", flag,
            find_flag(flag)->value, text, part);
    seen.push_back(key);
    start = comma + 1;
  }
  const bool in_step = flag == "test-nan" || flag == "test-overflow";
  const std::vector<std::string> needed = flag == "test-hang" ? std::vector<std::string>{"rank", "step", "point"}
                                          : in_step           ? std::vector<std::string>{"rank", "step"}
                                                              : std::vector<std::string>{"rank", "bytes"};
  for (const std::string& key : needed) {
    REQUIRE(std::ranges::count(seen, key) == 1, ErrorCode::kUsage,
            "--{} expects {}, got '{}' ({} must stand there once)", flag, find_flag(flag)->value, text, key);
  }
  return point;
}

}  // namespace ashlar
