// Pieces of a global tensor, addressed by global index: what lets any grid read what any other grid wrote, however its
// data ranks cut what they hold.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/base/shape.h"
#include "runtime/tensor/shard_spec.h"

namespace ashlar {

// A rank holds the indices [start, start + extent) of one dim of a tensor, row-major, of which a piece is the elements
// [begin, end). Indices beyond the tensor are padding; they count as elements.
struct TensorPiece {
  Shape global;
  int split_dim = -1;  // -1: all of the tensor is held; start and extent are 0
  int64_t start = 0;
  int64_t extent = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Pure. Elements [begin, begin + count) of what a shard holds in memory.
TensorPiece piece_of(const ShardSpec& shard, int64_t begin, int64_t count);

// Pure. The elements of a piece that are not padding, as a piece of what is held without padding.
TensorPiece without_padding(const TensorPiece& piece);

// Calls fn(position, global, length) for each run of elements that is contiguous both in the piece and in the global
// tensor, in ascending order; position counts from the piece's begin. Padding is left out.
void for_each_run(const TensorPiece& piece, const std::function<void(int64_t, int64_t, int64_t)>& fn);

// Calls fn(position_in_a, position_in_b, length) for each run that is contiguous in the tensor and both pieces of it.
// Takes time in the number of runs of `a`, and none to speak of where the two are far from each other.
void for_each_common_run(const TensorPiece& a, const TensorPiece& b,
                         const std::function<void(int64_t, int64_t, int64_t)>& fn);

}  // namespace ashlar
