#include "parallel/zero/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/optimizer.h"
#include "kernels/reduce.h"
#include "kernels/update_scalars.h"

namespace ashlar {

Optimizer::Optimizer(RankContext& rank, const ProcessGrid& grid, Stream& stream, ParameterStore& store,
                     const OptimizerConfig& config)
    : grid_(grid), stream_(stream), store_(store), config_(config) {
  const auto& entries = store.entries();
  moment_views_.resize(entries.size());
  int64_t most_blocks = 1;
  for (const auto& entry : entries) {
    most_blocks =
        std::max(most_blocks, (entry.parameter->grad.num_elements() + kernels::kNormBlock - 1) / kernels::kNormBlock);
  }
  block_sums_ = Tensor(rank.device, DType::kF64, {most_blocks}, "norm of a tensor by blocks");

  // Every rank of the model group lists its tensors; a tensor's row is the number of counted ones on earlier stages
  // plus its own place, the same for all tensor ranks.
  int64_t num_rows = 0;
  std::vector<int64_t> rows_of_stage(static_cast<size_t>(grid.shape().pipeline), 0);
  for (const auto& entry : entries) {
    rows_of_stage[static_cast<size_t>(grid.coordinate().pipeline)] += entry.parameter->tied_copy ? 0 : 1;
  }
  if (grid.coordinate().tensor != 0) {
    std::fill(rows_of_stage.begin(), rows_of_stage.end(), 0);  // one tensor rank speaks for its stage
  }
  grid.model().all_reduce(view_of(rows_of_stage.data(), {grid.shape().pipeline}), ReduceOp::kSum, stream).wait_host();
  int64_t first_row = 0;
  for (int stage = 0; stage < grid.shape().pipeline; ++stage) {
    first_row += stage < grid.coordinate().pipeline ? rows_of_stage[static_cast<size_t>(stage)] : 0;
    num_rows += rows_of_stage[static_cast<size_t>(stage)];
  }
  sum_index_.resize(entries.size());
  for (size_t at = 0; at < entries.size(); ++at) {
    sum_index_[at] = static_cast<size_t>(first_row);
    first_row += entries[at].parameter->tied_copy ? 0 : 1;
  }
  scalars_ = Tensor(rank.device, DType::kF64, {kernels::kNumUpdateScalars}, "scalars of the update");
  tensor_sums_ = Tensor(rank.device, DType::kF64, {num_rows, grid.shape().tensor}, "norm by tensors");

  if (config.kind == OptimizerKind::kAdamW) {
    Arena counting;
    const auto lay_out = [&](Arena& arena) {
      for (size_t at = 0; at < entries.size(); ++at) {
        if (!entries[at].shares_value) {
          const Parameter& parameter = *entries[at].parameter;
          moment_views_[at].first = take_tensor(arena, parameter.value.dtype, parameter.value.shape);
          moment_views_[at].second = take_tensor(arena, parameter.value.dtype, parameter.value.shape);
        }
      }
    };
    lay_out(counting);
    moments_ = rank.device.allocate(counting.used(), "optimizer state");
    std::memset(moments_.data(), 0, moments_.bytes());
    Arena arena(moments_.data(), moments_.bytes());
    lay_out(arena);
  }
}

double Optimizer::grad_norm(double grad_scale) {
  stream_.synchronize();
  double* sums = tensor_sums_.as<double>();
  std::fill_n(sums, tensor_sums_.view().num_elements(), 0.0);
  const auto& entries = store_.entries();
  for (size_t at = 0; at < entries.size(); ++at) {
    if (!entries[at].counted) {
      continue;
    }
    const TensorView grad = entries[at].parameter->grad;
    const int64_t num_blocks = (grad.num_elements() + kernels::kNormBlock - 1) / kernels::kNormBlock;
    kernels::sum_of_squares(block_sums_.view().slice(0, num_blocks), grad.reshaped({grad.num_elements()}), stream_);
    stream_.synchronize();
    double total = 0;
    for (int64_t block = 0; block < num_blocks; ++block) {
      total += block_sums_.as<double>()[block];
    }
    sums[sum_index_[at] * static_cast<size_t>(grid_.shape().tensor) + static_cast<size_t>(grid_.coordinate().tensor)] =
        total;
  }
  // One contributor per cell, so this sum moves numbers and rounds nothing.
  grid_.model().all_reduce(tensor_sums_, ReduceOp::kSum, stream_).wait_host();
  double total = 0;
  for (int64_t cell = 0; cell < tensor_sums_.view().num_elements(); ++cell) {
    total += sums[cell];
  }
  return grad_scale * std::sqrt(total);
}

void Optimizer::update(double learning_rate, double grad_scale, double norm) {
  ++num_updates_;
  double factor = grad_scale;
  if (config_.clip_grad > 0 && norm > config_.clip_grad) {
    factor *= config_.clip_grad / norm;
  }
  stream_.synchronize();  // the update before has read its scalars
  double* scalars = scalars_.as<double>();
  kernels::set_host_scalars(scalars, {.rate = learning_rate,
                                      .beta1 = config_.beta1,
                                      .beta2 = config_.beta2,
                                      .epsilon = config_.epsilon,
                                      .step = num_updates_});
  scalars[kernels::kFactor] = factor;
  scalars[kernels::kSkip] = 0;
  const auto flat = [](TensorView x) { return x.reshaped({x.num_elements()}); };
  const auto& entries = store_.entries();
  for (size_t at = 0; at < entries.size(); ++at) {
    if (entries[at].shares_value) {
      continue;
    }
    const Parameter& parameter = *entries[at].parameter;
    const double decay = parameter.decays ? config_.weight_decay : 0;
    if (config_.kind == OptimizerKind::kSgd) {
      kernels::sgd_step(flat(parameter.value), flat(parameter.grad), {}, scalars_, decay, stream_);
    } else {
      kernels::adamw_step(flat(parameter.value), flat(moment_views_[at].first), flat(moment_views_[at].second),
                          flat(parameter.grad), {}, scalars_, decay, stream_);
    }
  }
}

}  // namespace ashlar
