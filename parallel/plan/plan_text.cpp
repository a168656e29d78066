#include "parallel/plan/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "parallel/plan/cost.h"

namespace ashlar {
namespace {

constexpr size_t kMostColumns = 8;

// Stages that get a column: all, or the first, the last and the fullest.
std::vector<size_t> shown_stages(std::span<const RankMemory> stages, DeviceKind device) {
  std::vector<size_t> shown;
  const size_t fullest = fullest_stage(stages, device);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const bool is_outer = stage < kMostColumns / 2 || stage + kMostColumns / 2 - 1 >= stages.size();
    if (stages.size() <= kMostColumns || is_outer || stage == fullest) {
      shown.push_back(stage);
    }
  }
  return shown;
}

std::string stage_holds(const RunShape& shape, size_t stage) {
  int64_t first = 0;
  for (size_t at = 0; at < stage; ++at) {
    first += shape.layers_per_stage[at];
  }
  return fmt::format("{}..{}", first, first + shape.layers_per_stage[stage] - 1);
}

using Cell = std::function<std::string(size_t stage)>;

void add_row(std::string& out, const std::string& name, const std::vector<size_t>& stages, const Cell& cell) {
  out += fmt::format("  {:<24}", name);
  for (const size_t stage : stages) {
    out += fmt::format(" {:>10}", cell(stage));
  }
  out += '\n';
}

void add_head(std::string& out, const RunShape& shape, const std::string& title, const std::vector<size_t>& stages) {
  out += fmt::format("{:<26}", title);
  for (const size_t stage : stages) {
    out += fmt::format(" {:>10}", fmt::format("stage {}", stage));
  }
  out += '\n';
  add_row(out, "layers", stages, [&](size_t stage) { return stage_holds(shape, stage); });
}

// "1 rank", "2 ranks".
std::string counted(int count, const std::string& one, const std::string& many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string traffic_table(const RunShape& shape, const std::vector<size_t>& shown) {
  const std::vector<RankTraffic> stages = plan_traffic(shape);
  int64_t largest = 0;
  for (const RankTraffic& stage : stages) {
    for (const GroupTraffic& group : stage) {
      largest = std::max(largest, group.wire_bytes);
    }
  }
  if (largest == 0) {
    return "traffic: none, one rank works alone\n";
  }
  const ByteUnit unit = unit_of(largest);
  std::string out =
      fmt::format("{} a rank sends in a step (collectives go round a ring of so many ranks)\n", unit.name);
  const auto number = [&](int64_t bytes) { return fmt::format("{:.3f}", static_cast<double>(bytes) / unit.bytes); };
  for (size_t group = 0; group < kNumTrafficGroups; ++group) {
    const int num_ranks = stages.front()[group].num_ranks;
    const bool is_small =
        std::ranges::all_of(stages, [&](const RankTraffic& at) { return !unit.shows(at[group].wire_bytes); });
    if (num_ranks == 1 || is_small) {
      continue;
    }
    const char* name = traffic_group_name(static_cast<TrafficGroup>(group));
    add_row(out, fmt::format("{} ({})", name, num_ranks), shown,
            [&](size_t stage) { return number(stages[stage][group].wire_bytes); });
  }
  return out;
}

std::string time_text(const RunShape& shape, const TimeQuestion& time) {
  if (time.num_tokens == 0) {
    return "";
  }
  const int num_ranks = shape.grid.num_ranks();
  const auto days = [&](double flops) { return training_days(flops, num_ranks, time.peak_flops, time.mfu); };
  const double model = training_flops(shape, time.num_tokens, FlopFormula::kCausal);
  const double rule = flops_6nd(static_cast<double>(count_parameters(shape.config)), time.num_tokens);
  return fmt::format(
      "time: {} tokens on {} of {:.4g} TFLOP/s at {:.4g} % MFU\n"
      "  {:.3g} FLOPs with causal attention: {:.3g} days; 6 x parameters x tokens = {:.3g} FLOPs: {:.3g} days\n",
      count_text(time.num_tokens), counted(num_ranks, "rank", "ranks"), time.peak_flops / 1e12, time.mfu * 100, model,
      days(model), rule, days(rule));
}

}  // namespace

ByteUnit unit_of(int64_t largest) {
  return largest >= 1e9 ? ByteUnit{"GB", 1e9} : largest >= 1e6 ? ByteUnit{"MB", 1e6} : ByteUnit{"kB", 1e3};
}

std::string count_text(double count) {
  for (const auto& [name, size] : {std::pair{" T", 1e12}, std::pair{" B", 1e9}, std::pair{" M", 1e6}}) {
    if (count >= size) {
      return fmt::format("{:.4g}{}", count / size, name);
    }
  }
  return fmt::format("{:.0f}", count);
}

std::string memory_text(int64_t bytes) {
  const ByteUnit unit = unit_of(bytes);
  return fmt::format("{:.2f} {}", static_cast<double>(bytes) / unit.bytes, unit.name);
}

std::string memory_table(const RunShape& shape, std::span<const RankMemory> stages) {
  const std::vector<size_t> shown = shown_stages(stages, shape.device);
  const ByteUnit unit = unit_of(std::ranges::max_element(stages, {}, &RankMemory::total)->total());
  const auto number = [&](int64_t bytes) { return fmt::format("{:.3f}", static_cast<double>(bytes) / unit.bytes); };
  std::string out;
  add_head(out, shape, fmt::format("{} a rank ({})", unit.name, shape.device == DeviceKind::kCpu ? "CPU" : "GPU"),
           shown);
  for (size_t item = 0; item < kNumMemoryItems; ++item) {
    if (std::ranges::any_of(stages, [&](const RankMemory& stage) { return unit.shows(stage.bytes[item]); })) {
      add_row(out, memory_item_name(static_cast<MemoryItem>(item)), shown,
              [&](size_t stage) { return number(stages[stage].bytes[item]); });
    }
  }
  add_row(out, "total", shown, [&](size_t stage) { return number(stages[stage].total()); });
  add_row(out, "in host memory", shown, [&](size_t stage) { return number(stages[stage].host_total()); });
  if (std::ranges::any_of(stages, [](const RankMemory& stage) { return stage.disk_bytes > 0; })) {
    add_row(out, "on disk", shown, [&](size_t stage) { return number(stages[stage].disk_bytes); });
  }
  return out;
}

std::string plan_text(const RunShape& shape, const TimeQuestion& time) {
  const GptConfig& config = shape.config;
  const std::vector<RankMemory> memory = plan_memory(shape);
  const std::vector<size_t> shown = shown_stages(memory, shape.device);
  const std::vector<int64_t> parameters = parameters_per_rank(shape);
  const int64_t num_parameters = count_parameters(config);
  const auto tokens = static_cast<double>(shape.tokens_per_step());
  const int64_t samples = int64_t{shape.grid.data} * shape.num_microbatches * shape.batch.batch;
  std::string out = fmt::format(
      "model: {} parameters{}, {} layers, width {}, {} heads, vocabulary {} padded to {}, {}\n"
      "batch: {} samples = {} of {} on {}; {} tokens a step\n"
      "schedule: {}{}\n",
      num_parameters,
      num_parameters >= 1e6 ? fmt::format(" ({})", count_text(static_cast<double>(num_parameters))) : "",
      config.num_layers, config.width, config.num_heads, config.vocab, config.padded_vocab, dtype_name(config.dtype),
      samples, counted(shape.num_microbatches, "micro-batch", "micro-batches"), shape.batch.batch,
      shape.grid.data == 1 ? "one data rank" : fmt::format("each of {} data ranks", shape.grid.data),
      shape.tokens_per_step(), shape.schedule,
      shape.grid.pipeline == 1 ? ""
                               : fmt::format(", bubble {:.1f} % (a backward as long as two forwards, free transfers)",
                                             100 * bubble_fraction(shape)));
  for (const FlopFormula formula : {FlopFormula::kCausal, FlopFormula::kFullAttention}) {
    const double of_token = training_flops(shape, 1, formula);
    out += fmt::format("FLOPs: {:.4g} a token, {:.4g} a step: {}\n", of_token, of_token * tokens,
                       flop_formula_name(formula));
  }
  out += memory_table(shape, memory);
  add_row(out, "parameters held (count)", shown,
          [&](size_t stage) { return count_text(static_cast<double>(parameters[stage])); });
  add_row(out, "state bytes of each", shown, [&](size_t stage) {
    return fmt::format("{:.3f}", static_cast<double>(memory[stage].state()) / static_cast<double>(parameters[stage]));
  });
  if (shape.device != DeviceKind::kCpu) {
    out += "  not counted: CUDA's context and what NCCL takes for itself\n";
  }
  out += traffic_table(shape, shown);
  return out + time_text(shape, time);
}

}  // namespace ashlar
