#include <algorithm>
#include <cmath>
#include <tuple>

#include "parallel/train/training.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace {

// In host memory.
bool all_finite(ConstTensorView x) {
  const auto check = [count = x.num_elements()](const auto* data) {
    return std::all_of(data, data + count, [](auto value) {
      if constexpr (std::is_floating_point_v<decltype(value)>) {
        return std::isfinite(value);
      } else {
        return std::isfinite(to_float(value));
      }
    });
  };
  switch (x.dtype) {
    case DType::kF64:
      return check(x.as<double>());
    case DType::kBF16:
      return check(x.as<BFloat16>());
    case DType::kF16:
      return check(x.as<Float16>());
    default:
      return check(x.as<float>());
  }
}

// The first bad activation of a rank, ordered as the forward pass meets them.
struct Finding {
  int microbatch, stage, layer, is_output, world_rank;
  auto key() const { return std::tie(microbatch, stage, layer, is_output, world_rank); }
};

// This rank's.
std::string bad_gradient(const Training& training) {
  HostCopy copy(training.rank.device);
  std::vector<std::byte> scratch;
  for (const FlatPiece& piece : training.store.owned()) {
    if (!all_finite(copy.on_host(training.store.grad_of(piece), scratch))) {
      return fmt::format("rank {} ({}): the gradient of {} is not finite", training.rank.world.rank(),
                         training.grid.coordinate().text(), training.store.entries()[piece.tensor].parameter->name);
    }
  }
  return "";
}

// Of all ranks; the same text on all of them.
std::string first_bad_gradient(const Training& training) {
  for (const std::string& text : all_gather_text(training.rank.world, bad_gradient(training))) {
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

}  // namespace

std::string find_non_finite(Training& training, const SampleSource& source) {
  // Where another step was on its way already, the gradients are that one's.
  const bool has_gradients = training.results.newest_step() == training.state.iteration + 1;
  const std::string of_the_step = has_gradients ? first_bad_gradient(training) : "";
  std::vector<Finding> found;
  HostCopy copy(training.rank.device);
  std::vector<std::byte> scratch;
  const ExecutorHooks earlier = training.executor.hooks();
  ExecutorHooks hooks = earlier;
  hooks.on_activation = [&](int stage, int microbatch, int layer, bool is_output, TensorView activation) {
    if (earlier.on_activation) {
      earlier.on_activation(stage, microbatch, layer, is_output, activation);
    }
    training.stream->synchronize();
    if (found.empty() && !all_finite(copy.on_host(activation, scratch))) {
      found.push_back({microbatch, stage, layer, is_output, training.rank.world.rank()});
    }
  };
  training.executor.set_hooks(hooks);
  run_passes(training, source);
  training.stream->synchronize();
  training.executor.set_hooks(earlier);

  std::string line;
  if (!found.empty()) {
    const Finding& at = found.front();
    line = fmt::format("{} {} {} {} {}", at.microbatch, at.stage, at.layer, at.is_output, at.world_rank);
  }
  const std::vector<std::string> lines = all_gather_text(training.rank.world, line);
  std::vector<Finding> all;
  for (const std::string& text : lines) {
    Finding at{};
    if (std::sscanf(text.c_str(), "%d %d %d %d %d", &at.microbatch, &at.stage, &at.layer, &at.is_output,
                    &at.world_rank) == 5) {
      all.push_back(at);
    }
  }
  if (all.empty()) {
    const std::string again = first_bad_gradient(training);
    if (!again.empty()) {
      return "all activations are finite; " + again;
    }
    return "a second run of the step found every activation and gradient finite" +
           (of_the_step.empty() ? "" : "; in the first, " + of_the_step);
  }
  const Finding first =
      *std::min_element(all.begin(), all.end(), [](const Finding& a, const Finding& b) { return a.key() < b.key(); });
  const GridCoordinate at = coordinate_of(training.grid.shape(), rank_order(training.options), first.world_rank);
  const std::vector<std::string> names = all_gather_text(
      training.rank.world,
      training.chunks.front()
          ->layers()[std::min<size_t>(static_cast<size_t>(first.layer), training.chunks.front()->layers().size() - 1)]
          ->name());
  const int64_t sample = first_sample(training.state.consumed_samples, first.microbatch, at.data,
                                      training.grid.shape().data, training.options.micro_batch_size);
  return fmt::format("first on rank {} ({}), stage {}, in the {} of {}, micro-batch {} (samples {} to {})",
                     first.world_rank, at.text(), first.stage, first.is_output ? "output" : "input",
                     names[static_cast<size_t>(first.world_rank)], first.microbatch, sample,
                     sample + training.options.micro_batch_size - 1);
}

}  // namespace ashlar
