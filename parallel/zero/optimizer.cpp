#include "parallel/zero/optimizer.h"

#include <algorithm>

#include "kernels/cast.h"
#include "kernels/optimizer.h"
#include "kernels/reduce.h"
#include "kernels/stat_dtype.h"
#include "parallel/zero/update_cells.h"
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

int64_t Optimizer::state_bytes(const FlatLayout& layout, DType dtype, OptimizerKind kind) {
  const DType stat = kernels::stat_dtype(dtype);
  const int64_t kinds = (kind == OptimizerKind::kAdamW ? 2 : 0) + (dtype != stat ? 1 : 0);
  return kinds * layout.num_owned() * static_cast<int64_t>(dtype_bytes(stat));
}

Optimizer::Optimizer(RankContext& rank, const ProcessGrid& grid, Stream& stream, ParameterStore& store,
                     const OptimizerConfig& config, const OffloadConfig& offload)
    : grid_(grid), stream_(stream), store_(store), config_(config) {
  place_tensors(rank.device);
  if (offload.offloads_state()) {
    offloaded_ = std::make_unique<OffloadedState>(rank, stream, store, has_moments(), config.weight_decay, offload);
  }
  allocate_state(rank.device);
}

// Counted tensors of each stage.
std::vector<int64_t> Optimizer::gather_rows(Device& device) {
  const int num_stages = grid_.shape().pipeline;
  std::vector<int64_t> rows_of_stage(static_cast<size_t>(num_stages), 0);
  if (grid_.coordinate().tensor == 0) {  // one tensor rank speaks for its stage
    for (const auto& entry : store_.entries()) {
      rows_of_stage[static_cast<size_t>(grid_.coordinate().pipeline)] += entry.parameter->tied_copy ? 0 : 1;
    }
  }
  const Tensor on_device(device, DType::kI64, {num_stages}, "tensors by stage", MemoryItem::kWorkspace);
  HostCopy copy(device);
  copy.to_device(on_device.view().data, rows_of_stage.data(), on_device.view().bytes());
  grid_.model().all_reduce(on_device, ReduceOp::kSum, stream_).wait(stream_);
  stream_.synchronize();
  copy.to_host(rows_of_stage.data(), on_device.view().data, on_device.view().bytes());
  return rows_of_stage;
}

// Every rank of the model group lists its tensors; a tensor's row is the number of counted ones on earlier stages plus
// its own place, the same for all tensor ranks.
void Optimizer::place_tensors(Device& device) {
  const auto& entries = store_.entries();
  const std::vector<int64_t> rows_of_stage = gather_rows(device);
  int64_t num_blocks = 0;
  for (const auto& entry : entries) {
    blocks_of_.push_back(num_blocks);
    num_blocks += entry.parameter->tied_copy ? 0 : num_norm_blocks(entry.parameter->grad.num_elements());
  }
  int64_t num_rows = 0;
  int64_t first_row = 0;
  for (int stage = 0; stage < grid_.shape().pipeline; ++stage) {
    first_row += stage < grid_.coordinate().pipeline ? rows_of_stage[static_cast<size_t>(stage)] : 0;
    num_rows += rows_of_stage[static_cast<size_t>(stage)];
  }
  for (const auto& entry : entries) {
    sum_index_.push_back(static_cast<size_t>(first_row));
    first_row += entry.parameter->tied_copy ? 0 : 1;
  }
  const UpdateCells cells = update_cells(num_blocks, num_rows, grid_.shape().tensor);
  const auto allocate = [&](const Shape& shape, const char* what) {
    return Tensor(device, DType::kF64, shape, what, MemoryItem::kWorkspace);
  };
  block_sums_ = allocate(cells.block_sums, "norm of tensors by blocks");
  tensor_sums_ = allocate(cells.tensor_sums, "norm by tensors");
  scalars_ = allocate(cells.scalars, "scalars of the update");
}

// Each kind of state is one flat range, padding included, so that every data rank needs the same.
void Optimizer::allocate_state(Device& device) {
  const DType stat = kernels::stat_dtype(store_.dtype());
  const int64_t num_owned = store_.layout().num_owned();
  const auto allocate = [&](Buffer& buffer, int64_t kinds, const char* what) {
    buffer = device.allocate(static_cast<size_t>(kinds * num_owned) * dtype_bytes(stat), what, MemoryItem::kOptimizer);
    stream_.fill_zero(buffer.data(), buffer.bytes());
  };
  if (has_moments() && !offloaded_) {
    allocate(moments_, 2, "optimizer state");
  }
  if (store_.dtype() != stat && !offloaded_) {
    allocate(masters_, 1, "fp32 masters of the weights");
  }
  // Without data where it is offloaded.
  const auto state = [&](const Buffer& buffer, int64_t kind, const FlatPiece& owned) {
    const int64_t at = kind * num_owned + owned.owned_begin;
    return TensorView{offloaded_ ? nullptr : buffer.data() + static_cast<size_t>(at) * dtype_bytes(stat),
                      stat,
                      {owned.num_elements()}};
  };
  for (const FlatPiece& owned : offloaded_ ? offloaded_->pieces() : store_.owned()) {
    if (store_.entries()[owned.tensor].shares_value) {
      continue;
    }
    Piece& piece = pieces_.emplace_back();
    piece.entry = owned.tensor;
    piece.begin = owned.begin;
    piece.grad = store_.grad_of(owned);
    piece.value = store_.value_of(owned);
    piece.master = has_masters() ? state(masters_, 0, owned) : piece.value;
    if (has_moments()) {
      piece.moments = {state(moments_, 0, owned), state(moments_, 1, owned)};
    }
  }
  stream_.synchronize();
}

// Block sums of all tensors, from their owners; each cell has one contributor, so the sum over data ranks rounds
// nothing.
void Optimizer::sum_blocks() {
  const TensorView cells = block_sums_.view();
  stream_.fill_zero(cells.data, cells.bytes());
  for (const FlatPiece& owned : store_.owned()) {  // not cut by chunks of offloaded state
    if (store_.entries()[owned.tensor].counted) {
      const int64_t first = blocks_of_[owned.tensor] + owned.begin / kernels::kNormBlock;
      kernels::sum_of_squares(cells.slice(first, first + num_norm_blocks(owned.num_elements())), store_.grad_of(owned),
                              stream_);
    }
  }
  if (store_.sharding().cuts_state()) {
    grid_.shard().all_reduce(cells, ReduceOp::kSum, stream_).wait(stream_);
  }
}

void Optimizer::sum_squares() {
  stream_.fill_zero(tensor_sums_.view().data, tensor_sums_.view().bytes());
  sum_blocks();
  const auto& entries = store_.entries();
  const TensorView cells = flat(tensor_sums_.view());
  for (size_t at = 0; at < entries.size(); ++at) {
    if (entries[at].counted) {
      const int64_t end = blocks_of_[at] + num_norm_blocks(entries[at].parameter->grad.num_elements());
      const auto cell = static_cast<int64_t>(sum_index_[at]) * grid_.shape().tensor + grid_.coordinate().tensor;
      kernels::sum_in_order(cells.slice(cell, cell + 1), block_sums_.view().slice(blocks_of_[at], end), stream_);
    }
  }
  // One contributor per cell, so this sum moves numbers and rounds nothing.
  grid_.model().all_reduce(tensor_sums_, ReduceOp::kSum, stream_).wait(stream_);
}

void Optimizer::update(TensorView results, ConstTensorView totals, const UpdateRequest& request,
                       const std::function<void(size_t layer)>& updated) {
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
  if (offloaded_) {
    offloaded_->update(scalars_, updated);
    return;
  }
  size_t next = 0;
  const auto& layers = store_.layout().layers;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (; next < pieces_.size() && pieces_[next].entry < layers[layer].end_tensor; ++next) {
      update_piece(pieces_[next]);
    }
    updated(layer);
  }
}

void Optimizer::update_piece(const Piece& piece) {
  const TensorView copy = has_masters() ? piece.value : TensorView{};
  const double decay = store_.entries()[piece.entry].parameter->decays ? config_.weight_decay : 0;
  if (config_.kind == OptimizerKind::kSgd) {
    kernels::sgd_step(piece.master, piece.grad, copy, scalars_, decay, stream_);
  } else {
    kernels::adamw_step(piece.master, piece.moments.first, piece.moments.second, piece.grad, copy, scalars_, decay,
                        stream_);
  }
}

}  // namespace ashlar
