#include "parallel/zero/offloaded_state.h"

#include "kernels/cast.h"
#include "kernels/optimizer.h"
#include "kernels/stat_dtype.h"
#include "runtime/comm/wait_reached.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {
namespace {

constexpr size_t kNone = ~size_t{0};

}  // namespace

OffloadedState::OffloadedState(RankContext& rank, Stream& stream, const ParameterStore& store, bool has_moments,
                               double weight_decay, const OffloadConfig& config)
    : rank_(rank),
      stream_(stream),
      values_(store.value_home()),
      dtype_(store.dtype()),
      grad_dtype_(store.grad_dtype()),
      kinds_(state_kinds(store.dtype(), has_moments, rank.device.kind(), config)) {
  const HomeShape shape = state_shape(store.layout(), dtype_, kinds_, config.chunk_elements);
  const std::vector<StateChunk>& chunks = shape.chunks;
  pieces_ = cut_pieces(store.owned(), chunks);
  of_chunk_.resize(chunks.size());
  size_t at = 0;
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    of_chunk_[chunk].first = at;
    for (; at < pieces_.size() && pieces_[at].owned_begin < chunks[chunk].end; ++at) {
      const FlatPiece& piece = pieces_[at];
      parts_.push_back({.chunk = chunk,
                        .offset = piece.owned_begin - chunks[chunk].begin,
                        .weight_decay = store.entries()[piece.tensor].parameter->decays ? weight_decay : 0,
                        .grad = store.grad_of(piece),
                        .value = store.value_of(piece)});
    }
    of_chunk_[chunk].second = at;
  }
  agree(rank.world,
        [&] { home_ = make_home(rank, shape, config.state, config.state_files, "offloaded optimizer state"); });
  if (rank.device.kind() != DeviceKind::kCpu) {
    make_stages(shape.largest_chunk());
  }
}

OffloadedState::~OffloadedState() {
  try {
    if (is_beside_gpu()) {
      copies_->synchronize();
    }
  } catch (const std::exception&) {  // a failed device copies nothing any more, and the error is on its way
  }
}

void OffloadedState::make_stages(int64_t largest_chunk) {
  Arena counting;
  lay_out_carriers(counting, largest_chunk, grad_dtype_, dtype_);
  pinned_ = rank_.device.allocate_host(counting.used(), "gradients and weights on their way to the host",
                                       MemoryItem::kOptimizer);
  Arena arena(pinned_.data(), pinned_.bytes());
  const CarrierViews views = lay_out_carriers(arena, largest_chunk, grad_dtype_, dtype_);
  host_scalars_ = views.scalars;
  for (size_t at = 0; at < stages_.size(); ++at) {
    stages_[at] = {views.grads[at], views.values[at], rank_.device.create_event(), rank_.device.create_event()};
  }
  copies_ = rank_.device.create_stream(StreamPriority::kCommunication);
  ready_ = rank_.device.create_event();
  host_ = std::make_unique<CpuDevice>();
  host_stream_ = host_->create_stream();
}

std::span<const OffloadedState::Part> OffloadedState::parts_of(size_t chunk) const {
  return std::span(parts_).subspan(of_chunk_[chunk].first, of_chunk_[chunk].second - of_chunk_[chunk].first);
}

TensorView OffloadedState::state(const Part& part, int kind, int64_t num_elements) {
  return home_->bring(part.chunk, kind).slice(part.offset, part.offset + num_elements);
}

// Where new values are written: they are sent from there, or stay.
TensorView OffloadedState::value_of(const Part& part) {
  const int64_t count = part.value.num_elements();
  if (values_ != nullptr) {
    return values_->change(home_->shape().chunks[part.chunk].begin + part.offset, count);
  }
  const TensorView staged = stages_[part.chunk % stages_.size()].values;
  return is_beside_gpu() ? staged.slice(part.offset, part.offset + count) : part.value;
}

void OffloadedState::expect(size_t chunk) {
  home_->expect(chunk);
  if (values_ != nullptr) {
    values_->expect(home_->shape().chunks[chunk].layer);
  }
}

void OffloadedState::fetch_grads(size_t chunk) {
  Stage& stage = stages_[chunk % stages_.size()];
  for (const Part& part : parts_of(chunk)) {
    const TensorView place = stage.grads.slice(part.offset, part.offset + part.grad.num_elements());
    copies_->copy(place.data, part.grad.data, part.grad.bytes());
  }
  copies_->record(*stage.down);
}

void OffloadedState::send_values(size_t chunk) {
  if (values_ != nullptr) {
    const StateChunk& at = home_->shape().chunks[chunk];
    if (at.ends_layer) {
      values_->put_back(at.layer);
    }
    return;
  }
  if (!is_beside_gpu()) {
    return;
  }
  Stage& stage = stages_[chunk % stages_.size()];
  for (const Part& part : parts_of(chunk)) {
    const TensorView place = stage.values.slice(part.offset, part.offset + part.value.num_elements());
    copies_->copy(part.value.data, place.data, place.bytes());
  }
  copies_->record(*stage.up);
  stream_.wait(*stage.up);
}

// On a CPU the gradients and values are read and written where they lie.
void OffloadedState::update_chunk(size_t chunk, ConstTensorView scalars) {
  Stream& stream = is_beside_gpu() ? *host_stream_ : stream_;
  const Stage& stage = stages_[chunk % stages_.size()];
  for (const Part& part : parts_of(chunk)) {
    const int64_t count = part.grad.num_elements();
    const TensorView grad = is_beside_gpu() ? stage.grads.slice(part.offset, part.offset + count) : part.grad;
    const TensorView value = value_of(part);
    const bool rounds = dtype_ != kernels::stat_dtype(dtype_);
    const TensorView master = kinds_.masters ? state(part, 0, count) : value;
    const TensorView copy = rounds ? value : TensorView{};
    if (kinds_.moments) {
      const int first = kinds_.first_moment();
      kernels::adamw_step(master, state(part, first, count), state(part, first + 1, count), grad, copy, scalars,
                          part.weight_decay, stream);
    } else {
      kernels::sgd_step(master, grad, copy, scalars, part.weight_decay, stream);
    }
    if (kinds_.masters && !rounds) {
      stream.copy(value.data, master.data, master.bytes());
    }
  }
  stream.synchronize();
}

void OffloadedState::update(ConstTensorView scalars, const std::function<void(size_t layer)>& updated) {
  settle();
  const size_t num_chunks = of_chunk_.size();
  expect(0);
  if (is_beside_gpu()) {
    stream_.copy(host_scalars_.data, scalars.data, scalars.bytes());
    stream_.record(*ready_);
    copies_->wait(*ready_);
    fetch_grads(0);
    wait_reached(*ready_, stream_, rank_.recorder, "the norm of the gradients, before an update on the host");
    scalars = host_scalars_;
  } else {
    stream_.synchronize();
  }
  if (scalars.as<double>()[kernels::kSkip] != 0) {
    if (is_beside_gpu()) {
      stream_.wait(*stages_[0].down);  // the next step overwrites what is being copied
    }
    return;
  }
  for (size_t chunk = 0; chunk < num_chunks; ++chunk) {
    if (chunk + 1 < num_chunks) {
      expect(chunk + 1);
    }
    if (is_beside_gpu()) {
      const Stage& stage = stages_[chunk % stages_.size()];
      wait_reached(*stage.down, *copies_, rank_.recorder, "gradients on their way to the host");
      wait_reached(*stage.up, *copies_, rank_.recorder, "weights on their way to the device");
      if (chunk + 1 < num_chunks) {
        fetch_grads(chunk + 1);  // into the place of the chunk before, which the host is done with
      }
    }
    update_chunk(chunk, scalars);
    home_->put_back(chunk);
    send_values(chunk);
    const StateChunk& at = home_->shape().chunks[chunk];
    if (at.ends_layer) {
      updated(at.layer);
    }
  }
}

TensorView OffloadedState::bring(size_t piece, int kind, bool changes) {
  const Part& part = parts_[piece];
  if (part.chunk != open_) {
    settle();
    open_ = part.chunk;
  }
  open_changes_ = open_changes_ || changes;
  if (part.chunk + 1 < of_chunk_.size()) {
    home_->expect(part.chunk + 1);
  }
  return state(part, kind, part.grad.num_elements());
}

void OffloadedState::settle() {
  if (open_ != kNone && open_changes_) {
    home_->put_back(open_);
  }
  open_ = kNone;
  open_changes_ = false;
}

void OffloadedState::flush() {
  settle();
  home_->flush();
  if (values_ != nullptr) {
    values_->flush();
  }
}

void OffloadedState::round_chunk(size_t chunk) {
  Stream& stream = is_beside_gpu() ? *host_stream_ : stream_;
  for (const Part& part : parts_of(chunk)) {
    const int64_t count = part.value.num_elements();
    const TensorView master = state(part, 0, count);
    const TensorView value = value_of(part);
    if (value.dtype == master.dtype) {
      stream.copy(value.data, master.data, master.bytes());
    } else {
      kernels::cast(value, master, stream);
    }
  }
  stream.synchronize();
}

void OffloadedState::publish_masters() {
  settle();
  if (!kinds_.masters) {
    return;
  }
  stream_.synchronize();
  for (size_t chunk = 0; chunk < of_chunk_.size(); ++chunk) {
    if (is_beside_gpu()) {
      wait_reached(*stages_[chunk % stages_.size()].up, *copies_, rank_.recorder, "weights on their way to the device");
    }
    round_chunk(chunk);
    send_values(chunk);
  }
  stream_.synchronize();
}

}  // namespace ashlar
