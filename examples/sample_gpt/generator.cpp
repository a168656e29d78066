#include "examples/sample_gpt/generator.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/prepare.h"
#include "parallel/layers/head.h"
#include "runtime/base/rng.h"

namespace ashlar {
namespace {

TrainOptions on_one_rank(TrainOptions options) {
  options.tensor_model_parallel_size = 1;
  return options;
}

std::vector<NamedSlice> weight_slices(const ParameterStore& store) {
  std::vector<NamedSlice> slices;
  for (const ParameterStore::Entry& entry : store.entries()) {
    if (!entry.shares_value) {
      slices.push_back({"model/" + entry.parameter->name, entry.parameter->shard, entry.parameter->value, false});
    }
  }
  return slices;
}

}  // namespace

Generator::Generator(RankContext& rank, const std::string& directory, int64_t iteration)
    : options_(on_one_rank(saved_options(directory, iteration))),
      config_(gpt_config(options_)),
      grid_(rank, GridShape{}),
      stream_(rank.device.create_stream()),
      stage_(make_stage(config_, {config_.num_layers}, 0, 0, 1)),
      store_(rank.device, grid_, {stage_parameters(*stage_)}, config_.dtype),
      copy_(rank.device) {
  kernels::prepare_kernels(*stream_, {});
  load_checkpoint(rank, directory, iteration, weight_slices(store_));
  const BatchShape longest{1, config_.max_positions};
  activations_ = rank.device.allocate(stage_->saved_bytes(longest), "activations");
  workspace_ = rank.device.allocate(stage_->workspace_bytes(longest), "workspace");
}

int32_t Generator::next(std::span<const int32_t> context, const SamplingOptions& sampling, uint64_t position) {
  DCHECK(!context.empty(), "there is no token to go on from");
  const auto length = std::min<size_t>(context.size(), static_cast<size_t>(config_.max_positions));
  const BatchShape shape{1, static_cast<int64_t>(length)};
  Arena arena(activations_.data(), activations_.bytes());
  StageChunk::ActivationSlot slot = stage_->activation_layout(arena, shape);
  copy_.to_device(slot.batch.tokens.data, context.data() + (context.size() - length), length * sizeof(int32_t));
  stream_->fill_zero(slot.batch.targets.data, slot.batch.targets.bytes());
  stream_->fill_zero(slot.batch.mask.data, slot.batch.mask.bytes());

  Arena workspace(workspace_.data(), workspace_.bytes());
  LayerContext layer_context{.stream = *stream_,
                             .tensor = grid_.tensor(),
                             .workspace = workspace,
                             .shape = shape,
                             .batch = {},
                             .training = false,
                             .losses = {}};
  ParamsInPlace in_place;
  stage_->forward({layer_context, in_place}, slot, nullptr);
  stream_->synchronize();
  const auto& head = static_cast<const LossHead&>(*stage_->layers().back());
  const TensorView logits = head.logits(shape, {slot.saved.back(), Arena()});  // [T,V]
  const ConstTensorView last = copy_.on_host(logits.slice(shape.seq - 1, shape.seq), scratch_);
  return choose({last.as<float>(), static_cast<size_t>(config_.vocab)}, sampling, position);
}

int32_t Generator::choose(std::span<const float> logits, const SamplingOptions& sampling, uint64_t position) const {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept =
      sampling.top_k > 0 ? std::min<size_t>(static_cast<size_t>(sampling.top_k), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    [&](int32_t a, int32_t b) {
                      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)] ||
                             (logits[static_cast<size_t>(a)] == logits[static_cast<size_t>(b)] && a < b);
                    });
  if (sampling.temperature == 0) {
    return order[0];
  }
  const auto logit = [&](size_t at) { return static_cast<double>(logits[static_cast<size_t>(order[at])]); };
  std::vector<double> cumulative(kept);
  double total = 0;
  for (size_t at = 0; at < kept; ++at) {
    total += std::exp((logit(at) - logit(0)) / sampling.temperature);
    cumulative[at] = total;
  }
  const PhiloxStream random(sampling.seed, RngPurpose::kSample, 0);
  const double draw = random.uniform(position) * total;
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), draw);
  return order[std::min<size_t>(static_cast<size_t>(found - cumulative.begin()), kept - 1)];
}

}  // namespace ashlar
