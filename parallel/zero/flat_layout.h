// Where tensors lie in flat arenas that the data ranks share out: which bucket holds what, and who owns which part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/layers/parameter.h"

namespace ashlar {

// What is cut among the data ranks (--zero-stage).
struct Sharding {
  int num_shards = 1;           // data ranks; 1: nothing is cut
  int64_t bucket_elements = 0;  // of one collective, rounded up to what divides evenly (--ddp-bucket-size)

  bool is_sharded() const { return num_shards > 1; }
};

struct FlatTensor {
  int64_t num_elements = 0;  // of this rank's slice
  int stage = 0;
  bool is_tied = false;       // one of the two uses of a tied table
  bool shares_value = false;  // has a gradient only; the last of all
};

// Elements [begin, end) of the arenas; a multiple of num_shards norm blocks. Shard r owns the r-th part.
struct FlatBucket {
  int stage = 0;
  int64_t begin = 0;
  int64_t end = 0;
  size_t first_tensor = 0;  // of those that the bucket's row of buckets holds: a tied table is alone in its own
  bool has_value = true;
};

// Tensors begin at multiples of kernels::kNormBlock and shards are whole blocks, so no block of the norm is cut and its
// bits do not depend on who owns what. A tied table has buckets of its own, so both its uses are cut alike.
struct FlatLayout {
  Sharding sharding;
  std::vector<int64_t> offsets;  // by tensor: its first element, in the arenas of gradients and of values
  std::vector<FlatBucket> buckets;
  int64_t num_elements = 0;        // of the gradient arena
  int64_t num_value_elements = 0;  // of the value arena, which ends where gradients without values begin

  // Elements of optimizer state that every shard holds: its parts of all buckets with values, one after another.
  int64_t num_owned() const { return num_value_elements / sharding.num_shards; }
};

// Pure.
FlatLayout lay_out_shards(std::span<const FlatTensor> tensors, const Sharding& sharding);

// A part of a tensor within one shard of one bucket.
struct FlatPiece {
  size_t tensor = 0;
  int64_t begin = 0;  // elements of the tensor
  int64_t end = 0;
  int64_t owned_begin = 0;  // its place in the state that the shard holds

  int64_t num_elements() const { return end - begin; }
};

// Pure. What a shard owns, in the order of the tensors; gradients without values among it, at the end.
std::vector<FlatPiece> owned_pieces(const FlatLayout& layout, std::span<const FlatTensor> tensors, int shard);

}  // namespace ashlar
