#include "parallel/zero/value_gather.h"

#include <algorithm>

#include "runtime/base/hash.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {

ValueGather::ValueGather(const ProcessGrid& grid, Stream& stream, ParameterStore& store, bool overlap)
    : grid_(grid), stream_(stream), store_(store), overlap_(overlap), on_their_way_(store.layout().layers.size()) {
  size_t most = 0;
  for (size_t at = 0; at < on_their_way_.size(); ++at) {
    const FlatLayer& layer = store.layout().layers[at];
    most = std::max(most, layer.end_bucket - layer.first_bucket);
    on_their_way_[at].reserve(layer.end_bucket - layer.first_bucket);
  }
  for (Place& place : places_) {
    place.on_their_way.reserve(most);
    if (store.value_home() != nullptr) {
      place.copied = store.device().create_event();
    }
  }
}

ValueGather::~ValueGather() {
  try {
    for (std::vector<Work>& works : on_their_way_) {
      wait(works);
    }
    for (Place& place : places_) {
      wait(place);
    }
    stream_.synchronize();
  } catch (const std::exception&) {  // a failed job, whose error is on its way
  }
}

void ValueGather::wait(std::vector<Work>& works) {
  for (Work& work : works) {
    work.wait(stream_);
  }
  works.clear();
}

void ValueGather::wait(Place& place) {
  wait(place.on_their_way);
  if (place.copied != nullptr) {  // in a group of one there is no other work
    stream_.wait(*place.copied);
  }
}

void ValueGather::updated(size_t layer) {
  const FlatLayout& layout = store_.layout();
  if (!layout.sharding.cuts_state() || layout.sharding.cuts_values()) {
    return;
  }
  for (size_t bucket = layout.layers[layer].first_bucket; bucket < layout.layers[layer].end_bucket; ++bucket) {
    if (layout.buckets[bucket].has_value) {
      on_their_way_[layer].push_back(grid_.shard().all_gather(store_.values_of(layout.buckets[bucket]),
                                                              store_.own_values_of(layout.buckets[bucket]), stream_));
    }
  }
  if (!overlap_) {
    wait(on_their_way_[layer]);
  }
}

void ValueGather::updated() {
  for (size_t layer = 0; layer < on_their_way_.size(); ++layer) {
    updated(layer);
  }
}

void ValueGather::bring(const FlatLayer& layer) {
  Place& place = place_of(layer);
  if (place.layer == &layer) {
    return;
  }
  DCHECK(place.layer == nullptr, "layer {} of stage {} in the place of another", layer.layer, layer.stage);
  const FlatLayout& layout = store_.layout();
  Stream& from = store_.value_home() != nullptr ? store_.value_home()->arrivals() : stream_;
  for (size_t at = layer.first_bucket; at < layer.end_bucket; ++at) {
    const TensorView whole = store_.gathered(layer, layout.buckets[at]);
    TensorView own = store_.own_part(whole);
    if (store_.value_home() != nullptr) {
      store_.value_home()->bring(layout.buckets[at], own);
    } else {
      own = store_.own_values_of(layout.buckets[at]);
    }
    place.on_their_way.push_back(grid_.shard().all_gather(whole, own, from));
  }
  if (place.copied != nullptr) {
    from.record(*place.copied);
  }
  place.layer = &layer;
}

// A disk is asked ahead, and waited for only where a layer is needed.
void ValueGather::bring_ahead() {
  if (!overlap_ || next_ == nullptr) {
    return;
  }
  if (reads_files()) {
    store_.value_home()->expect(index_of(*next_));
  } else {
    bring(*next_);
  }
}

bool ValueGather::has_room_beside(const FlatLayer& layer, const FlatLayer& next) const {
  return reads_files() ? store_.value_home()->has_room_for_both(index_of(layer), index_of(next))
                       : store_.layout().fit_together(layer, next);
}

void ValueGather::open(int stage, size_t first) {
  if (store_.sharding().cuts_values()) {
    next_ = first == kNoLayer ? nullptr : &layer_of(stage, first);
    bring_ahead();
  }
}

void ValueGather::close() {
  next_ = nullptr;
  for (Place& place : places_) {
    wait(place);
    place.layer = nullptr;
  }
}

void ValueGather::need(int stage, size_t layer, size_t next) {
  const FlatLayer& needed = layer_of(stage, layer);
  if (!store_.sharding().cuts_values()) {
    wait(on_their_way_[index_of(needed)]);
    return;
  }
  bring(needed);
  wait(place_of(needed));
  next_ = next == kNoLayer ? nullptr : &layer_of(stage, next);
  if (next_ != nullptr && has_room_beside(needed, *next_)) {
    bring_ahead();
  }
}

void ValueGather::done(int stage, size_t layer) {
  if (store_.sharding().cuts_values() && next_ != &layer_of(stage, layer)) {
    place_of(layer_of(stage, layer)).layer = nullptr;
    bring_ahead();  // for which there may have been no room
  }
}

void ValueGather::for_each_value(const std::function<void(size_t entry, ConstTensorView value)>& look) {
  for (const FlatLayer& layer : store_.layout().layers) {
    need(layer.stage, layer.layer, kNoLayer);
    stream_.synchronize();
    for (size_t at = layer.first_tensor; at < layer.end_tensor; ++at) {
      if (!store_.entries()[at].shares_value) {
        look(at, store_.entries()[at].parameter->value);
      }
    }
    done(layer.stage, layer.layer);
  }
}

uint64_t ValueGather::hash_values() {
  uint64_t hash = 0;
  HostCopy copy(stream_.device());
  std::vector<std::byte> scratch;
  for_each_value([&](size_t, ConstTensorView value) {
    hash = hash_bytes(copy.on_host(value, scratch).data, value.bytes(), hash);
  });
  return hash;
}

}  // namespace ashlar
