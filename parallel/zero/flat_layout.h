// Where tensors lie in flat arenas: layer after layer, cut into buckets, and who owns which part of a bucket. One pure
// description for whoever allocates and whoever counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/layers/parameter.h"
#include "runtime/base/dtype.h"

namespace ashlar {

// What the data ranks share out, and when gradients meet.
struct Sharding {
  int zero_stage = 0;             // --zero-stage
  int num_shards = 1;             // ranks that share; 1: nothing is cut
  int64_t bucket_elements = 0;    // of one collective, rounded up to what divides evenly (--ddp-bucket-size)
  bool each_microbatch = false;   // gradients meet behind every micro-batch (--grad-reduce)
  bool grads_in_bf16 = false;     // gradients are summed and kept in 16 bits (--grad-reduce-in-bf16)
  bool values_elsewhere = false;  // than in device memory, of one rank too (--offload-param-device)

  // Layers write gradients into a place that they share, and what they wrote is added to the sums.
  bool stages_grads() const { return each_microbatch || grads_in_bf16; }
  bool cuts_state() const { return num_shards > 1 && zero_stage >= 1; }
  // Before all micro-batches are summed nobody knows a part of the sum: until then gradients are whole.
  bool cuts_grads() const { return num_shards > 1 && zero_stage >= 2 && each_microbatch; }
  bool cuts_values() const { return (num_shards > 1 || values_elsewhere) && zero_stage >= 3; }
};

struct FlatTensor {
  int64_t num_elements = 0;  // of this rank's slice
  int stage = 0;
  size_t layer = 0;           // within the stage
  bool is_tied = false;       // one of the two uses of a tied table
  bool shares_value = false;  // has a gradient only; the last of all
};

// Elements [begin, end) of the arenas; a multiple of num_shards norm blocks where something is cut. Shard r owns the
// r-th part, which is elements [begin, end) / num_shards of an arena of owned parts.
struct FlatBucket {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t value_begin = 0;  // of the first use's values where the bucket holds gradients only
  size_t first_tensor = 0;  // of those that the bucket's row of buckets holds: a tied table is alone in its own
  bool has_value = true;

  int64_t num_elements() const { return end - begin; }
};

struct FlatLayer {
  int stage = 0;
  size_t layer = 0;  // within the stage
  int64_t begin = 0;
  int64_t end = 0;
  size_t first_bucket = 0;
  size_t end_bucket = 0;
  size_t first_tensor = 0;
  size_t end_tensor = 0;

  int64_t num_elements() const { return end - begin; }
};

// Where something is cut, tensors begin at multiples of kernels::kNormBlock and shards are whole blocks, so no block of
// the norm is cut and its bits do not depend on who owns what. A tied table has buckets of its own, so both its uses
// are cut alike.
struct FlatLayout {
  Sharding sharding;
  std::vector<int64_t> offsets;  // by tensor: its first element, in the arenas of gradients and of values
  std::vector<FlatLayer> layers;
  std::vector<FlatBucket> buckets;
  int64_t num_elements = 0;        // of the gradient arena
  int64_t num_value_elements = 0;  // of the value arena, which ends where gradients without values begin
  int64_t num_pair_elements = 0;   // of the fullest two layers that follow each other on a stage

  // Elements of optimizer state that every shard holds: its parts of all buckets with values, one after another.
  int64_t num_owned() const { return num_value_elements / sharding.num_shards; }
  // Two layers that follow each other have a place at once in a buffer of num_pair_elements: even ones at its start,
  // odd ones at its end.
  int64_t place_in_pair(const FlatLayer& layer) const {
    return layer.layer % 2 == 0 ? 0 : num_pair_elements - layer.num_elements();
  }
  // Whether both have a place in it at once: neighbours always, others where their places do not meet.
  bool fit_together(const FlatLayer& a, const FlatLayer& b) const {
    return a.layer % 2 != b.layer % 2 && a.num_elements() + b.num_elements() <= num_pair_elements;
  }
  const FlatLayer& layer_of(int stage, size_t layer) const;
};

// Pure. Tensors in the order of stages and layers.
FlatLayout lay_out_flat(std::span<const FlatTensor> tensors, const Sharding& sharding);

// A part of a tensor within one shard of one bucket.
struct FlatPiece {
  size_t tensor = 0;
  int64_t begin = 0;  // elements of the tensor
  int64_t end = 0;
  int64_t owned_begin = 0;  // its place in the state that the shard holds

  int64_t num_elements() const { return end - begin; }
};

// Pure. What a shard owns, in the order of the tensors; gradients without values among it, at the end. Where nothing is
// cut, every tensor whole.
std::vector<FlatPiece> owned_pieces(const FlatLayout& layout, std::span<const FlatTensor> tensors, int shard);

// Pure. Of summed gradients, where values have `dtype`: its stat dtype (fp32 for 16-bit values), or bf16.
DType grad_dtype(const Sharding& sharding, DType dtype);

// Bytes of the arenas of one rank; all shards need the same.
struct StoreBytes {
  int64_t values = 0;
  int64_t gathered = 0;  // two layers whose values are put together
  int64_t grads = 0;
  int64_t staged = 0;  // gradients of two layers, as layers write them
  int64_t sent = 0;    // the same in 16 bits, on their way to the others
};
// Pure. Values have `dtype`.
StoreBytes store_bytes(const FlatLayout& layout, DType dtype);

}  // namespace ashlar
