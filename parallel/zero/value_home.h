// This rank's parts of values where they are not in device memory (--offload-param-device): beside a GPU in host
// memory, or in a file. A layer's part is one chunk.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "parallel/zero/offload_config.h"

namespace ashlar {

class ValueHome {
 public:
  // Collective over the world, so that all ranks learn of a disk that is too small on one; blocks the host. Of zeros.
  ValueHome(RankContext& rank, Stream& stream, const FlatLayout& layout, DType dtype, const OffloadConfig& config);
  // Blocks the host until nothing is on its way over the bus.
  ~ValueHome();
  ValueHome(const ValueHome&) = delete;
  ValueHome& operator=(const ValueHome&) = delete;

  bool reads_files() const { return home_->kind() == HomeKind::kFiles; }
  // A layer (its index in FlatLayout::layers) that will be brought or changed next. Blocks the host only until the
  // place that its part comes to is free: an older layer's copy, or its write.
  void expect(size_t layer);
  // Pure. Whether one layer's part may come from a file while the other's is being copied.
  bool has_room_for_both(size_t layer, size_t other) const {
    return chunk_of_layer_[layer] % slots_.size() != chunk_of_layer_[other] % slots_.size();
  }
  // Stream-ordered; blocks the host until the disk has given it. This rank's part of a bucket, into `place` [n]: on
  // arrivals(), behind what is on the computation's stream now.
  void bring(const FlatBucket& bucket, TensorView place);
  // Beside a GPU not the computation's stream.
  Stream& arrivals() { return copies_ != nullptr ? *copies_ : stream_; }

  // Blocks the host. Elements [begin, begin + count) of the values that this rank owns [count], in host memory, for new
  // numbers; nothing on the stream may still read them. put_back() behind the last of a layer.
  TensorView change(int64_t begin, int64_t count);
  void put_back(size_t layer);
  // Blocks the host until the disk has taken everything; throws what failed.
  void flush() { home_->flush(); }

  std::string text() const { return home_->text(); }  // for the log
  int64_t disk_bytes() const { return home_->disk_bytes(); }

 private:
  static constexpr size_t kNone = ~size_t{0};
  size_t chunk_at(int64_t owned) const;
  void make_room(size_t chunk);

  RankContext& rank_;
  Stream& stream_;
  int num_shards_;
  std::vector<size_t> chunk_of_layer_;  // kNone: it has no values of its own
  std::unique_ptr<StateHome> home_;
  // By chunk modulo the places of a home: which was brought last, and when the stream has read it.
  struct Slot {
    size_t chunk = kNone;
    std::unique_ptr<Event> read;
  };
  std::array<Slot, StateHome::kNumSlots> slots_;
  std::unique_ptr<Stream> copies_;  // beside a GPU
  std::unique_ptr<Event> place_is_free_;
};

}  // namespace ashlar
