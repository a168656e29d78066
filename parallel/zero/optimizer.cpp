#include "parallel/zero/optimizer.h"

#include <algorithm>
#include <array>

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

}  // namespace

int64_t Optimizer::num_norm_blocks(int64_t num_elements) {
  return (num_elements + kernels::kNormBlock - 1) / kernels::kNormBlock;
}

int64_t Optimizer::num_norm_blocks(const std::vector<Parameter*>& parameters) {
  int64_t count = 0;
  for (const Parameter* parameter : parameters) {
    count += parameter->tied_copy ? 0 : num_norm_blocks(parameter->shard.local().num_elements());
  }
  return count;
}

Optimizer::Optimizer(RankContext& rank, const ProcessGrid& grid, Stream& stream, ParameterStore& store,
                     const OptimizerConfig& config)
    : grid_(grid), stream_(stream), store_(store), config_(config) {
  int64_t num_blocks = store.is_sharded() ? 0 : 1;
  for (const auto& entry : store.entries()) {
    const int64_t blocks = num_norm_blocks(entry.parameter->grad.num_elements());
    if (store.is_sharded()) {
      blocks_of_.push_back(num_blocks);
      num_blocks += entry.parameter->tied_copy ? 0 : blocks;
    } else {
      num_blocks = std::max(num_blocks, blocks);
    }
  }
  block_sums_ = Tensor(rank.device, DType::kF64, {num_blocks}, "norm of tensors by blocks");
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
  const DType stat = entries.front().parameter->grad.dtype;
  const bool is_rounded = entries.front().parameter->value.dtype != stat;
  // With sharding one flat range for each kind of state, padding included, so that every data rank needs the same.
  const int64_t num_owned = store_.is_sharded() ? store_.layout().num_owned() : 0;
  for (const FlatPiece& owned : store_.owned()) {
    const ParameterStore::Entry& entry = entries[owned.tensor];
    if (!entry.shares_value) {
      const TensorView value = flat(entry.parameter->value).slice(owned.begin, owned.end);
      pieces_.push_back({.entry = owned.tensor,
                         .begin = owned.begin,
                         .grad = flat(entry.parameter->grad).slice(owned.begin, owned.end),
                         .value = value,
                         .master = value,
                         .moments = {}});
    }
  }
  // `kinds` is one for masters, two for moments.
  const auto allocate = [&](Buffer& buffer, size_t kinds, const char* what) {
    const auto lay_out = [&](Arena& arena) {
      std::array<TensorView, 2> state;
      for (size_t kind = 0; kind < kinds && store_.is_sharded(); ++kind) {
        state[kind] = take_tensor(arena, stat, {num_owned});
      }
      size_t at = 0;
      for (const FlatPiece& owned : store_.owned()) {
        if (entries[owned.tensor].shares_value) {
          continue;
        }
        for (size_t kind = 0; kind < kinds; ++kind) {
          Piece& piece = pieces_[at];
          TensorView& part = kinds == 1 ? piece.master : kind == 0 ? piece.moments.first : piece.moments.second;
          if (!store_.is_sharded()) {
            part = take_tensor(arena, stat, {owned.num_elements()});
          } else if (!arena.counting()) {
            part = state[kind].slice(owned.owned_begin, owned.owned_begin + owned.num_elements());
          }
        }
        ++at;
      }
    };
    Arena counting;
    lay_out(counting);
    buffer = device.allocate(counting.used(), what);
    stream_.fill_zero(buffer.data(), buffer.bytes());
    Arena arena(buffer.data(), buffer.bytes());
    lay_out(arena);
  };
  if (has_moments()) {
    allocate(moments_, 2, "optimizer state");
  }
  if (is_rounded) {
    allocate(masters_, 1, "fp32 masters of the weights");
  }
  stream_.synchronize();
}

// Block sums of all tensors, from their owners; each cell has one contributor, so the sum over data ranks rounds
// nothing.
void Optimizer::sum_blocks() {
  const TensorView cells = block_sums_.view();
  stream_.fill_zero(cells.data, cells.bytes());
  for (const Piece& piece : pieces_) {
    if (!store_.entries()[piece.entry].counted) {
      continue;
    }
    const int64_t first = blocks_of_[piece.entry] + piece.begin / kernels::kNormBlock;
    kernels::sum_of_squares(cells.slice(first, first + num_norm_blocks(piece.grad.num_elements())), piece.grad,
                            stream_);
  }
  grid_.data().all_reduce(cells, ReduceOp::kSum, stream_).wait(stream_);
}

void Optimizer::sum_squares() {
  stream_.fill_zero(tensor_sums_.view().data, tensor_sums_.view().bytes());
  if (store_.is_sharded()) {
    sum_blocks();
  }
  const auto& entries = store_.entries();
  const TensorView cells = flat(tensor_sums_.view());
  for (size_t at = 0; at < entries.size(); ++at) {
    if (!entries[at].counted) {
      continue;
    }
    const TensorView grad = entries[at].parameter->grad;
    const int64_t first = store_.is_sharded() ? blocks_of_[at] : 0;
    const TensorView blocks = block_sums_.view().slice(first, first + num_norm_blocks(grad.num_elements()));
    const auto cell = static_cast<int64_t>(sum_index_[at]) * grid_.shape().tensor + grid_.coordinate().tensor;
    if (!store_.is_sharded()) {
      kernels::sum_of_squares(blocks, flat(grad), stream_);
    }
    kernels::sum_in_order(cells.slice(cell, cell + 1), blocks, stream_);
  }
  // One contributor per cell, so this sum moves numbers and rounds nothing.
  grid_.model().all_reduce(tensor_sums_, ReduceOp::kSum, stream_).wait(stream_);
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
  for (const Piece& piece : pieces_) {
    const TensorView copy = has_masters() ? piece.value : TensorView{};
    const double decay = store_.entries()[piece.entry].parameter->decays ? config_.weight_decay : 0;
    if (config_.kind == OptimizerKind::kSgd) {
      kernels::sgd_step(piece.master, piece.grad, copy, scalars_, decay, stream_);
    } else {
      kernels::adamw_step(piece.master, piece.moments.first, piece.moments.second, piece.grad, copy, scalars_, decay,
                          stream_);
    }
  }
  if (store_.is_sharded()) {
    gather_values();
  }
}

void Optimizer::gather_values() {
  for (const FlatBucket& bucket : store_.layout().buckets) {
    if (bucket.has_value) {
      const TensorView values = store_.bucket_values(bucket);
      grid_.data().all_gather(values, store_.own_part(values), stream_).wait(stream_);
    }
  }
}

}  // namespace ashlar
