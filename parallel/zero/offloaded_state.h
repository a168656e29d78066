// The optimizer's state where it is not in device memory: on the host beside a GPU, or in files. The update walks its
// chunks: one is updated on the host while the next is brought and the one before goes back.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "parallel/zero/offload_config.h"
#include "parallel/zero/parameter_store.h"
#include "runtime/comm/launch.h"

namespace ashlar {

class OffloadedState {
 public:
  // Collective over the world, so that all ranks learn of a disk that is too small on one; blocks the host.
  // `weight_decay` is that of tensors that decay.
  OffloadedState(RankContext& rank, Stream& stream, const ParameterStore& store, bool has_moments, double weight_decay,
                 const OffloadConfig& config);
  // Blocks the host until nothing is on its way over the bus, whose ends go behind it.
  ~OffloadedState();
  OffloadedState(const OffloadedState&) = delete;
  OffloadedState& operator=(const OffloadedState&) = delete;

  // Blocks the host until the last chunk is updated. AdamW, or SGD without moments, as the kernels say; nothing where
  // `scalars` [kNumUpdateScalars] fp64, in device memory, say so. Behind the last chunk of a layer its new values are
  // on the stream, and `updated` is told its index in FlatLayout::layers.
  void update(ConstTensorView scalars, const std::function<void(size_t layer)>& updated);

  // What this rank owns, in the order of chunks.
  const std::vector<FlatPiece>& pieces() const { return pieces_; }
  const StateKinds& kinds() const { return kinds_; }
  // Blocks the host. A piece's numbers of one kind [n], fp32, until those of another chunk are asked for; what is
  // written to them stays where `changes`. Fastest in the order of pieces. settle() behind the last.
  TensorView bring(size_t piece, int kind, bool changes);
  void settle();
  // Blocks the host until the disk has taken everything; throws what failed.
  void flush();
  // Blocks the host. The values of all pieces become their rounded masters, on the device.
  void publish_masters();

  int64_t disk_bytes() const { return home_->disk_bytes(); }
  std::string text() const { return home_->text(); }  // for the log

 private:
  // Of a piece, [n] each: where its gradients and values are, and what the kernels on the host read and write.
  struct Part {
    size_t chunk = 0;
    int64_t offset = 0;  // in its chunk
    double weight_decay = 0;
    TensorView grad;
    TensorView value;
  };
  // Pinned memory between the GPU and the host, for every other chunk.
  struct Stage {
    TensorView grads;   // [largest chunk]
    TensorView values;  // [largest chunk]
    std::unique_ptr<Event> down, up;
  };
  bool is_beside_gpu() const { return copies_ != nullptr; }
  std::span<const Part> parts_of(size_t chunk) const;
  void make_stages(int64_t largest_chunk);
  void expect(size_t chunk);
  TensorView value_of(const Part& part);
  void fetch_grads(size_t chunk);
  void send_values(size_t chunk);
  void update_chunk(size_t chunk, ConstTensorView scalars);
  void round_chunk(size_t chunk);
  TensorView state(const Part& part, int kind, int64_t num_elements);

  RankContext& rank_;
  Stream& stream_;
  ValueHome* values_;  // null: values are in device memory
  DType dtype_;
  DType grad_dtype_;
  StateKinds kinds_;
  std::vector<FlatPiece> pieces_;
  std::vector<Part> parts_;                          // by piece
  std::vector<std::pair<size_t, size_t>> of_chunk_;  // by chunk: its parts [first, last)
  std::unique_ptr<StateHome> home_;
  size_t open_ = ~size_t{0};  // the chunk that bring() showed last
  bool open_changes_ = false;
  // Beside a GPU only: a CPU updates in place, on its own stream.
  Buffer pinned_;
  TensorView host_scalars_;  // [kNumUpdateScalars] fp64
  std::array<Stage, 2> stages_;
  std::unique_ptr<Stream> copies_;
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Device> host_;
  std::unique_ptr<Stream> host_stream_;
};

}  // namespace ashlar
