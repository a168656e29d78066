// The flat arenas of parameters and gradients of one rank, and who counts each tensor.
#pragma once

#include <functional>
#include <vector>

#include "parallel/grid/process_grid.h"
#include "parallel/layers/parameter.h"
#include "parallel/zero/flat_layout.h"

namespace ashlar {

// Pure. Parameters of stages as lay_out_shards() takes them. A tied copy on the rank that also holds the first use
// shares its value.
std::vector<FlatTensor> flat_tensors(const std::vector<int>& stages,
                                     const std::vector<std::vector<Parameter*>>& parameters);

// Parameters lie in one arena, their gradients in another, both in stage order, each tensor aligned to 64 bytes. A tied
// copy on the rank that also holds the first use shares its value and has only a gradient, behind all others. Where
// data ranks share out the state, both arenas lie as lay_out_shards() says.
class ParameterStore {
 public:
  struct Entry {
    Parameter* parameter = nullptr;
    int stage = 0;
    bool counted = false;       // this rank's slice enters the global norm and the checkpoint
    bool shares_value = false;  // a tied copy beside its first use
    size_t grad_offset = 0;     // bytes into the gradient arena
  };
  // Bytes [begin, end) of the gradient arena that hold a stage's gradients.
  struct StageRange {
    int stage = 0;
    size_t begin = 0;
    size_t end = 0;
  };

  // Blocks the host. Lays out and binds the parameters of `stages` (this rank's, ascending): parameters[i] belongs to
  // stages[i]. Values have `dtype`, gradients its stat dtype (fp32 for 16-bit values); all start at zero.
  ParameterStore(Device& device, const ProcessGrid& grid, const std::vector<int>& stages,
                 const std::vector<std::vector<Parameter*>>& parameters, DType dtype, const Sharding& sharding = {});

  // Blocks the host. Starting values: a pure function of seed, tensor name and global element index, computed in fp32
  // on the host whatever the device, and rounded where values are 16 bits wide. `take_unrounded` is shown the numbers
  // of each entry before that, in host memory.
  using TakeUnrounded = std::function<void(size_t entry, const std::vector<float>& values)>;
  void initialize(uint64_t seed, const TakeUnrounded& take_unrounded = {});

  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<StageRange>& stage_ranges() const { return stage_ranges_; }
  TensorView grads(size_t begin_byte, size_t end_byte) const;  // [n] of the gradient arena

  // What this data rank owns: without sharding, every tensor whole.
  const std::vector<FlatPiece>& owned() const { return owned_; }
  // Whether, of all ranks that own the same pieces of an entry, this is the one that saves them.
  bool saves(size_t entry) const { return entries_[entry].counted && is_first_replica_; }
  bool is_sharded() const { return layout_.sharding.is_sharded(); }
  const FlatLayout& layout() const { return layout_; }  // with sharding only
  // The memory of a bucket [end - begin], and this rank's part of it.
  TensorView bucket_grads(const FlatBucket& bucket) const;
  TensorView bucket_values(const FlatBucket& bucket) const;
  TensorView own_part(TensorView bucket) const;
  // This rank's parts [n] of the gradient of a tied table, padding included: the same for both of its uses.
  std::vector<TensorView> owned_grads_of_tied(size_t entry) const;

  // Trainable values that this rank updates (a shared value once); elements without padding between tensors.
  int64_t num_local_elements() const;
  size_t value_bytes() const { return values_.bytes(); }
  size_t grad_bytes() const { return grads_.bytes(); }
  // Blocks the host, on a GPU until all its work is done. Of this rank's parameters, in order.
  uint64_t hash_values() const;

 private:
  Device& device_;
  DType dtype_;
  Buffer values_;
  Buffer grads_;
  std::vector<Entry> entries_;
  std::vector<StageRange> stage_ranges_;
  FlatLayout layout_;
  std::vector<FlatPiece> owned_;
  int shard_ = 0;
  bool is_first_replica_ = true;
};

}  // namespace ashlar
