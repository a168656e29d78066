#include "runtime/checkpoint/blocks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/error.h"

namespace ashlar {

namespace {

Block common_block(const Block& a, const Block& b) {
  DCHECK(a.shape.num_dims() == b.shape.num_dims(), "{} and {}", a.shape.text(), b.shape.text());
  Block common = a;
  for (int dim = 0; dim < a.shape.num_dims(); ++dim) {
    const int64_t begin = std::max(a.origin[dim], b.origin[dim]);
    const int64_t end = std::min(a.origin[dim] + a.shape[dim], b.origin[dim] + b.shape[dim]);
    common.origin.set(dim, begin);
    common.shape.set(dim, std::max<int64_t>(end - begin, 0));
  }
  return common;
}

// Position in `block`'s memory of the element with this global index.
int64_t position_in(const Block& block, const std::array<int64_t, Shape::kMaxDims>& index) {
  int64_t position = 0;
  for (int dim = 0; dim < block.shape.num_dims(); ++dim) {
    position = position * block.shape[dim] + index[static_cast<size_t>(dim)] - block.origin[dim];
  }
  return position;
}

}  // namespace

Block block_of(const Shape& global, int dim, int64_t start, int64_t size) {
  Block block{global, global};
  for (int d = 0; d < global.num_dims(); ++d) {
    block.origin.set(d, 0);
  }
  if (dim >= 0) {
    block.origin.set(dim, start);
    block.shape.set(dim, size);
  }
  return block;
}

Block block_of(const ShardSpec& shard) {
  return block_of(shard.global, shard.split_dim, shard.begin(),
                  shard.split_dim < 0 ? 0 : shard.local()[shard.split_dim]);
}

int64_t num_common_elements(const Block& a, const Block& b) {
  return common_block(a, b).shape.num_elements();
}

void copy_common_elements(const Block& to, std::byte* to_data, const Block& from, const std::byte* from_data,
                          size_t element_bytes) {
  const Block common = common_block(to, from);
  if (common.shape.num_elements() == 0) {
    return;
  }
  // Trailing dims that are whole in both blocks make one run with the dim before them.
  int run_dim = common.shape.num_dims();
  int64_t run = 1;
  while (run_dim > 0) {
    --run_dim;
    run *= common.shape[run_dim];
    if (common.shape[run_dim] != to.shape[run_dim] || common.shape[run_dim] != from.shape[run_dim]) {
      break;
    }
  }
  std::array<int64_t, Shape::kMaxDims> index{};
  for (int dim = 0; dim < common.shape.num_dims(); ++dim) {
    index[static_cast<size_t>(dim)] = common.origin[dim];
  }
  const int64_t num_runs = common.shape.num_elements() / run;
  for (int64_t i = 0; i < num_runs; ++i) {
    std::memcpy(to_data + static_cast<size_t>(position_in(to, index)) * element_bytes,
                from_data + static_cast<size_t>(position_in(from, index)) * element_bytes,
                static_cast<size_t>(run) * element_bytes);
    for (int dim = run_dim - 1; dim >= 0; --dim) {  // the next index of the dims in front of the run
      int64_t& at = index[static_cast<size_t>(dim)];
      if (++at < common.origin[dim] + common.shape[dim]) {
        break;
      }
      at = common.origin[dim];
    }
  }
}

}  // namespace ashlar
