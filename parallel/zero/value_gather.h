// Brings values to where layers read them: from the owners of what was updated, or, where every rank holds its parts
// only, layer by layer in front of each pass.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/pipeline/param_sync.h"
#include "parallel/zero/parameter_store.h"

namespace ashlar {

class ValueGather {
 public:
  // `overlap` (--overlap-param-gather): what is on its way is waited for where it is needed, not at once. Changes no
  // bit.
  ValueGather(const ProcessGrid& grid, Stream& stream, ParameterStore& store, bool overlap);
  // Blocks the host until nothing is on its way.
  ~ValueGather();
  ValueGather(const ValueGather&) = delete;
  ValueGather& operator=(const ValueGather&) = delete;

  // Collective over the sharding ranks; stream-ordered. Behind a change of what this rank owns of a layer (its index in
  // FlatLayout::layers), or of all.
  void updated(size_t layer);
  void updated();

  // As in ParamSync. The pair of places holds a layer that is being read and the one that is read next, where both fit
  // in; else that one comes as soon as the place is free. A layer that is read next again stays.
  void open(int stage, size_t first);
  void close();
  void need(int stage, size_t layer, size_t next);
  void done(int stage, size_t layer);

  // Collective over the sharding ranks; blocks the host. Shows each tensor's value, whole, in device memory, to `look`;
  // a shared value once.
  void for_each_value(const std::function<void(size_t entry, ConstTensorView value)>& look);
  // Collective over the sharding ranks; blocks the host. Of this rank's parameters in order, without padding: the same
  // for all ZeRO stages.
  uint64_t hash_values();

 private:
  // A layer in the pair of places, and what brings it there.
  struct Place {
    const FlatLayer* layer = nullptr;
    std::vector<Work> on_their_way;
    std::unique_ptr<Event> copied;  // where values are elsewhere: this rank's part is there
  };
  const FlatLayer& layer_of(int stage, size_t layer) const { return store_.layout().layer_of(stage, layer); }
  Place& place_of(const FlatLayer& layer) { return places_[layer.layer % 2]; }
  size_t index_of(const FlatLayer& layer) const { return static_cast<size_t>(&layer - store_.layout().layers.data()); }
  void bring(const FlatLayer& layer);
  void bring_ahead();
  bool reads_files() const { return store_.value_home() != nullptr && store_.value_home()->reads_files(); }
  bool has_room_beside(const FlatLayer& layer, const FlatLayer& next) const;
  void wait(std::vector<Work>& works);
  void wait(Place& place);

  const ProcessGrid& grid_;
  Stream& stream_;
  ParameterStore& store_;
  bool overlap_;
  std::array<Place, 2> places_;                  // by layer modulo 2
  const FlatLayer* next_ = nullptr;              // that is read next; null: nobody knows yet
  std::vector<std::vector<Work>> on_their_way_;  // by layer, where values are whole
};

}  // namespace ashlar
