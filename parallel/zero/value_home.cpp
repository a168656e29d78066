#include "parallel/zero/value_home.h"

#include <algorithm>

#include "runtime/comm/wait_reached.h"

namespace ashlar {

ValueHome::ValueHome(RankContext& rank, Stream& stream, const FlatLayout& layout, DType dtype,
                     const OffloadConfig& config)
    : rank_(rank),
      stream_(stream),
      num_shards_(layout.sharding.num_shards),
      chunk_of_layer_(layout.layers.size(), kNone) {
  const HomeShape shape = value_shape(layout, dtype);
  for (size_t chunk = 0; chunk < shape.chunks.size(); ++chunk) {
    chunk_of_layer_[shape.chunks[chunk].layer] = chunk;
  }
  agree(rank.world, [&] { home_ = make_home(rank, shape, config.values, config.value_files, "offloaded parameters"); });
  for (Slot& slot : slots_) {
    slot.read = rank.device.create_event();
  }
  if (rank.device.kind() != DeviceKind::kCpu) {
    copies_ = rank.device.create_stream(StreamPriority::kCommunication);
    place_is_free_ = rank.device.create_event();
  }
}

ValueHome::~ValueHome() {
  try {
    arrivals().synchronize();
  } catch (const std::exception&) {  // a failed device copies nothing any more, and the error is on its way
  }
}

size_t ValueHome::chunk_at(int64_t owned) const {
  const auto& chunks = home_->shape().chunks;
  const auto next = std::ranges::upper_bound(chunks, owned, {}, &StateChunk::begin);
  return static_cast<size_t>(next - chunks.begin()) - 1;
}

// What comes into a place must not meet a copy out of it.
void ValueHome::make_room(size_t chunk) {
  Slot& slot = slots_[chunk % slots_.size()];
  if (slot.chunk != chunk && slot.chunk != kNone) {
    wait_reached(*slot.read, arrivals(), rank_.recorder, "parameters on their way to the device");
  }
  slot.chunk = chunk;
}

void ValueHome::expect(size_t layer) {
  const size_t chunk = chunk_of_layer_[layer];
  if (chunk != kNone && reads_files()) {
    make_room(chunk);
    home_->expect(chunk);
  }
}

void ValueHome::bring(const FlatBucket& bucket, TensorView place) {
  const int64_t begin = bucket.value_begin / num_shards_;
  const TensorView part = change(begin, place.num_elements());
  if (copies_ != nullptr) {
    stream_.record(*place_is_free_);
    copies_->wait(*place_is_free_);
  }
  arrivals().copy(place.data, part.data, part.bytes());
  arrivals().record(*slots_[chunk_at(begin) % slots_.size()].read);
}

TensorView ValueHome::change(int64_t begin, int64_t count) {
  const size_t chunk = chunk_at(begin);
  if (reads_files()) {
    make_room(chunk);
  }
  const int64_t offset = begin - home_->shape().chunks[chunk].begin;
  return home_->bring(chunk, 0).slice(offset, offset + count);
}

// Also of a layer of which this rank owns padding only, which nobody changed.
void ValueHome::put_back(size_t layer) {
  const size_t chunk = chunk_of_layer_[layer];
  if (chunk != kNone) {
    change(home_->shape().chunks[chunk].begin, 0);
    home_->put_back(chunk);
  }
}

}  // namespace ashlar
