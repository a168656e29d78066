#include "parallel/zero/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/cast.h"
#include "kernels/optimizer.h"
#include "kernels/reduce.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace {

template <typename View>
View flat(View x) {
  return x.reshaped({x.num_elements()});
}

int64_t num_norm_blocks(const TensorView& grad) {
  return (grad.num_elements() + kernels::kNormBlock - 1) / kernels::kNormBlock;
}

}  // namespace

Optimizer::Optimizer(RankContext& rank, const ProcessGrid& grid, Stream& stream, ParameterStore& store,
                     const OptimizerConfig& config)
    : grid_(grid), stream_(stream), store_(store), config_(config) {
  int64_t most_blocks = 1;
  for (const auto& entry : store.entries()) {
    most_blocks = std::max(most_blocks, num_norm_blocks(entry.parameter->grad));
  }
  block_sums_ = Tensor(rank.device, DType::kF64, {most_blocks}, "norm of a tensor by blocks");
  scalars_ = Tensor(rank.device, DType::kF64, {kernels::kNumUpdateScalars}, "scalars of the update");
  place_tensors(rank.device);
  allocate_state(rank.device);
}

// Every rank of the model group lists its tensors; a tensor's row is the number of counted ones on earlier stages plus
// its own place, the same for all tensor ranks.
void Optimizer::place_tensors(Device& device) {
  const auto& entries = store_.entries();
  const int num_stages = grid_.shape().pipeline;
  std::vector<int64_t> rows_of_stage(static_cast<size_t>(num_stages), 0);
  if (grid_.coordinate().tensor == 0) {  // one tensor rank speaks for its stage
    for (const auto& entry : entries) {
      rows_of_stage[static_cast<size_t>(grid_.coordinate().pipeline)] += entry.parameter->tied_copy ? 0 : 1;
    }
  }
  const Tensor on_device(device, DType::kI64, {num_stages}, "tensors by stage");
  HostCopy copy(device);
  copy.to_device(on_device.view().data, rows_of_stage.data(), on_device.view().bytes());
  grid_.model().all_reduce(on_device, ReduceOp::kSum, stream_).wait(stream_);
  stream_.synchronize();
  copy.to_host(rows_of_stage.data(), on_device.view().data, on_device.view().bytes());

  int64_t num_rows = 0;
  int64_t first_row = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    first_row += stage < grid_.coordinate().pipeline ? rows_of_stage[static_cast<size_t>(stage)] : 0;
    num_rows += rows_of_stage[static_cast<size_t>(stage)];
  }
  for (const auto& entry : entries) {
    sum_index_.push_back(static_cast<size_t>(first_row));
    first_row += entry.parameter->tied_copy ? 0 : 1;
  }
  tensor_sums_ = Tensor(device, DType::kF64, {num_rows, grid_.shape().tensor}, "norm by tensors");
}

void Optimizer::allocate_state(Device& device) {
  const auto& entries = store_.entries();
  moment_views_.resize(entries.size());
  master_views_.resize(entries.size());
  const auto lay_out_moments = [&](Arena& arena) {
    for (size_t at = 0; at < entries.size() && has_moments(); ++at) {
      if (!entries[at].shares_value) {
        const Parameter& parameter = *entries[at].parameter;
        moment_views_[at].first = take_tensor(arena, parameter.grad.dtype, parameter.value.shape);
        moment_views_[at].second = take_tensor(arena, parameter.grad.dtype, parameter.value.shape);
      }
    }
  };
  const auto lay_out_masters = [&](Arena& arena) {
    for (size_t at = 0; at < entries.size(); ++at) {
      const Parameter& parameter = *entries[at].parameter;
      if (entries[at].shares_value) {
        continue;
      }
      const bool is_rounded = parameter.value.dtype != parameter.grad.dtype;
      master_views_[at] =
          is_rounded ? take_tensor(arena, parameter.grad.dtype, parameter.value.shape) : parameter.value;
    }
  };
  const auto allocate = [&](Buffer& buffer, const auto& lay_out, const char* what) {
    Arena counting;
    lay_out(counting);
    buffer = device.allocate(counting.used(), what);
    if (buffer.bytes() == 0) {
      return;
    }
    stream_.fill_zero(buffer.data(), buffer.bytes());
    Arena arena(buffer.data(), buffer.bytes());
    lay_out(arena);
  };
  allocate(moments_, lay_out_moments, "optimizer state");
  allocate(masters_, lay_out_masters, "fp32 masters of the weights");
  stream_.synchronize();
}

void Optimizer::sum_squares() {
  stream_.fill_zero(tensor_sums_.view().data, tensor_sums_.view().bytes());
  const auto& entries = store_.entries();
  const TensorView cells = flat(tensor_sums_.view());
  for (size_t at = 0; at < entries.size(); ++at) {
    if (!entries[at].counted) {
      continue;
    }
    const TensorView grad = entries[at].parameter->grad;
    const TensorView blocks = block_sums_.view().slice(0, num_norm_blocks(grad));
    const auto cell = static_cast<int64_t>(sum_index_[at]) * grid_.shape().tensor + grid_.coordinate().tensor;
    kernels::sum_of_squares(blocks, flat(grad), stream_);
    kernels::sum_in_order(cells.slice(cell, cell + 1), blocks, stream_);
  }
  // One contributor per cell, so this sum moves numbers and rounds nothing.
  grid_.model().all_reduce(tensor_sums_, ReduceOp::kSum, stream_).wait(stream_);
}

double Optimizer::grad_norm(double grad_scale) {
  sum_squares();
  stream_.synchronize();
  std::vector<double> sums(static_cast<size_t>(tensor_sums_.view().num_elements()));
  HostCopy(stream_.device()).to_host(sums.data(), tensor_sums_.view().data, tensor_sums_.view().bytes());
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  return grad_scale * std::sqrt(total);
}

void Optimizer::update(TensorView results, ConstTensorView totals, const UpdateRequest& request) {
  ++num_updates_;
  kernels::finish_step(results, scalars_, totals, flat(squares()),
                       {.nominal_targets = request.nominal_targets,
                        .clip_grad = config_.clip_grad,
                        .rate = request.learning_rate,
                        .beta1 = config_.beta1,
                        .beta2 = config_.beta2,
                        .epsilon = config_.epsilon,
                        .step = num_updates_,
                        .skip_not_finite = request.skip_not_finite},
                       stream_);
  const auto& entries = store_.entries();
  for (size_t at = 0; at < entries.size(); ++at) {
    if (entries[at].shares_value) {
      continue;
    }
    const Parameter& parameter = *entries[at].parameter;
    const TensorView master = flat(master_views_[at]);
    const TensorView copy = masters_.bytes() > 0 ? flat(parameter.value) : TensorView{};
    const double decay = parameter.decays ? config_.weight_decay : 0;
    if (config_.kind == OptimizerKind::kSgd) {
      kernels::sgd_step(master, flat(parameter.grad), copy, scalars_, decay, stream_);
    } else {
      kernels::adamw_step(master, flat(moment_views_[at].first), flat(moment_views_[at].second), flat(parameter.grad),
                          copy, scalars_, decay, stream_);
    }
  }
}

void Optimizer::round_masters() {
  const auto& entries = store_.entries();
  for (size_t at = 0; at < entries.size() && masters_.bytes() > 0; ++at) {
    if (!entries[at].shares_value) {
      kernels::cast(flat(entries[at].parameter->value), flat(master_views_[at]), stream_);
    }
  }
}

}  // namespace ashlar
