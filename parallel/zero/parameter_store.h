// The flat arenas of parameters and gradients of one rank, and who counts each tensor.
#pragma once

#include <functional>
#include <vector>

#include "parallel/grid/process_grid.h"
#include "parallel/pipeline/stage_chunk.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/value_home.h"

namespace ashlar {

// The parameters of one stage, layer by layer.
struct StageParameters {
  int stage = 0;
  std::vector<std::vector<Parameter*>> layers;
};
// Pure.
StageParameters stage_parameters(const StageChunk& chunk);

// Pure. Parameters of a rank's stages, ascending, as lay_out_flat() takes them. A tied copy on the rank that also holds
// the first use shares its value.
std::vector<FlatTensor> flat_tensors(const std::vector<StageParameters>& stages);

// Parameters lie in one arena, their gradients in another, as lay_out_flat() says; each whole, or this rank's parts of
// all buckets only (Sharding). Where values are cut, a layer is read in a place that it shares with others, and where
// gradients meet behind each micro-batch, it writes into such a place: Parameter::value and ::grad lie there.
class ParameterStore {
 public:
  struct Entry {
    Parameter* parameter = nullptr;
    int stage = 0;
    bool counted = false;       // this rank's slice enters the global norm and the checkpoint
    bool shares_value = false;  // a tied copy beside its first use
  };

  // Blocks the host. Lays out and binds the parameters of this rank's stages. Values have `dtype`, summed gradients
  // grad_dtype(), what layers write the stat dtype of values; all start at zero.
  ParameterStore(Device& device, const ProcessGrid& grid, const std::vector<StageParameters>& stages, DType dtype,
                 const Sharding& sharding = {});

  // Blocks the host. Starting values: a pure function of seed, tensor name and global element index, computed in fp32
  // on the host whatever the device, and rounded where values are 16 bits wide. `take_unrounded` is shown the numbers
  // of each entry before that, in host memory.
  using TakeUnrounded = std::function<void(size_t entry, const std::vector<float>& values)>;
  void initialize(uint64_t seed, const TakeUnrounded& take_unrounded = {});

  // Where values are that are not in device memory (Sharding::values_elsewhere), from then on; initialize() leaves them
  // to whoever takes the numbers before rounding.
  void set_value_home(std::unique_ptr<ValueHome> home) { value_home_ = std::move(home); }
  ValueHome* value_home() const { return value_home_.get(); }

  Device& device() const { return device_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const FlatLayout& layout() const { return layout_; }
  const Sharding& sharding() const { return layout_.sharding; }
  DType dtype() const { return dtype_; }
  DType grad_dtype() const { return grad_dtype_; }
  int shard() const { return shard_; }

  // What this rank owns: its part of each tensor, or every tensor whole.
  const std::vector<FlatPiece>& owned() const { return owned_; }
  // Whether, of all ranks that own the same parts of an entry, this is the one that saves them.
  bool saves(size_t entry) const { return entries_[entry].counted && is_first_instance_; }
  TensorView value_of(const FlatPiece& piece) const;  // [n]; no data where values are elsewhere
  TensorView grad_of(const FlatPiece& piece) const;   // [n]: summed over micro-batches and ranks, behind the reductions

  // A bucket's values [n], where they are whole; gradients likewise. This rank's part of them [n / shards], always.
  TensorView values_of(const FlatBucket& bucket) const;
  TensorView grads_of(const FlatBucket& bucket) const;
  TensorView own_values_of(const FlatBucket& bucket) const;
  TensorView own_grads_of(const FlatBucket& bucket) const;
  TensorView own_part(TensorView bucket) const;
  // The bucket [n] in the place where its layer is read, or writes its gradients.
  TensorView gathered(const FlatLayer& layer, const FlatBucket& bucket) const;
  TensorView staged(const FlatLayer& layer, const FlatBucket& bucket) const;
  TensorView sent(const FlatLayer& layer, const FlatBucket& bucket) const;  // the same in 16 bits
  // This rank's parts [n] of the gradient of a tied table, padding included: the same for both of its uses.
  std::vector<TensorView> owned_grads_of_tied(size_t entry) const;

  // Trainable values of this rank's stages (a shared value once); elements without padding between tensors.
  int64_t num_local_elements() const;
  size_t value_bytes() const { return values_.bytes() + gathered_.bytes(); }
  size_t grad_bytes() const { return grads_.bytes() + staged_.bytes() + sent_.bytes(); }

 private:
  void allocate();
  void bind();

  Device& device_;
  DType dtype_;
  DType grad_dtype_;
  std::vector<Entry> entries_;
  FlatLayout layout_;
  std::vector<FlatPiece> owned_;
  int shard_ = 0;
  bool is_first_instance_ = true;
  Buffer values_;
  Buffer gathered_;
  Buffer grads_;
  Buffer staged_;
  Buffer sent_;
  std::unique_ptr<ValueHome> value_home_;  // at its end waits for copies into gathered_
};

}  // namespace ashlar
