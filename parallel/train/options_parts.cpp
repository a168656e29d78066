// The small pure functions of options.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

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
    for (const auto& [flag, layers] : {std::pair("first", first), std::pair("last", last)}) {
      REQUIRE(layers.value_or(num_layers) == num_layers, ErrorCode::kUsage,
              "--decoder-{}-pipeline-num-layers {} needs --pipeline-model-parallel-size of at least 2: one stage holds "
              "all {} layers; nearest legal value: {}",
              flag, *layers, num_layers, num_layers);
    }
    return {num_layers};
  }
  const int64_t fixed = first.value_or(0) + last.value_or(0);
  const int64_t others = num_stages - (first ? 1 : 0) - (last ? 1 : 0);
  const int64_t rest = num_layers - fixed;
  if (others == 0 ? rest != 0 : rest < others) {
    const auto flags = [&](std::optional<int64_t> of_first, std::optional<int64_t> of_last) {
      return fmt::format("{}{}{}", of_first ? fmt::format("--decoder-first-pipeline-num-layers {}", *of_first) : "",
                         of_first && of_last ? " and " : "",
                         of_last ? fmt::format("--decoder-last-pipeline-num-layers {}", *of_last) : "");
    };
    // The first stage keeps what it can.
    const int64_t most = num_layers - others;
    const int64_t of_first = first ? std::min(*first, last ? most - 1 : most) : 0;
    const std::string nearest =
        flags(first ? std::optional(of_first) : std::nullopt,
              last ? std::optional(others == 0 ? most - of_first : std::min(*last, most - of_first)) : std::nullopt);
    throw Error(ErrorCode::kUsage,
                fmt::format("{} of --num-layers {} do not fit --pipeline-model-parallel-size {}: {}; nearest legal: {}",
                            flags(first, last), num_layers, num_stages,
                            others == 0   ? std::string("the two must add up to --num-layers")
                            : others == 1 ? std::string("the other stage needs at least one layer")
                                          : fmt::format("the {} other stages need at least one layer each", others),
                            nearest));
  }
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

namespace {

// What names a stage, and which. The first counts.
std::vector<std::pair<std::string, int64_t>> named_stages(const TrainOptions& options) {
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
  return given;
}

}  // namespace

int zero_stage_of(const TrainOptions& options) {
  const auto given = named_stages(options);
  for (size_t at = 1; at < given.size(); ++at) {
    REQUIRE(given[at].second == given[0].second, ErrorCode::kUsage,
            "{} and {} contradict each other (they are --zero-stage {} and {}): give one of them", given[0].first,
            given[at].first, given[0].second, given[at].second);
  }
  return given.empty() ? 0 : static_cast<int>(given[0].second);
}

std::string zero_stage_text(const TrainOptions& options) {
  const auto given = named_stages(options);
  return given.empty() ? "--zero-stage 0, the default" : given[0].first;
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

std::string offload_optimizer_text(const TrainOptions& options) {
  return options.optimizer_cpu_offload              ? "--optimizer-cpu-offload"
         : options.offload_optimizer_device.empty() ? "--offload-optimizer-device none, the default"
                                                    : "--offload-optimizer-device " + options.offload_optimizer_device;
}

std::string offload_param_of(const TrainOptions& options) {
  return options.offload_param_device.empty() ? "none" : options.offload_param_device;
}

std::string in_users_words(const TrainOptions& options, const std::string& message) {
  constexpr const char* kNameLetters = "abcdefghijklmnopqrstuvwxyz0123456789-";
  std::string out;
  std::map<std::string, std::set<std::string>> named;  // by file, of one line
  for (size_t at = 0; at <= message.size();) {
    if (at == message.size() || message[at] == '\n') {
      for (const auto& [file, names] : named) {
        out += fmt::format(" ({}: in {})", fmt::join(names, ", "), file);
      }
      named.clear();
      out += at == message.size() ? "" : "\n";
      ++at;
      continue;
    }
    const size_t end = std::min(message.find_first_not_of(kNameLetters, at), message.size());
    const std::string word = message.substr(at, end - at);
    const auto found = word.starts_with("--") ? options.files.find(word.substr(2)) : options.files.end();
    if (found != options.files.end()) {
      named[found->second].insert(found->first);
    }
    out += found != options.files.end() ? found->first : word.empty() ? message.substr(at, 1) : word;
    at = std::max(end, at + 1);
  }
  return out;
}

}  // namespace ashlar
