// Blocks of a global tensor, addressed by global index: what lets any grid read what any other grid wrote.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/shape.h"
#include "runtime/tensor/shard_spec.h"

namespace ashlar {

// Memory that holds the elements [origin, origin + shape) of a global tensor, row-major. It may reach beyond the global
// tensor where a shard is padded.
struct Block {
  Shape origin;  // global index of its first element, dim by dim
  Shape shape;
};

// Pure. The block a shard holds in memory, padding included.
Block block_of(const ShardSpec& shard);
// Pure. The block [start, start + size) along `dim` of a tensor; all of it when dim < 0.
Block block_of(const Shape& global, int dim, int64_t start, int64_t size);

// Pure. How many elements both hold.
int64_t num_common_elements(const Block& a, const Block& b);

// Copies the elements both hold, `element_bytes` each, in the longest runs that are contiguous in both.
void copy_common_elements(const Block& to, std::byte* to_data, const Block& from, const std::byte* from_data,
                          size_t element_bytes);

}  // namespace ashlar
