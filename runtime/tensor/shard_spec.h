// Which slice of a global tensor a rank holds: at most one dim is split, evenly, after padding.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/base/shape.h"

namespace ashlar {

struct ShardSpec {
  Shape global;        // the tensor everybody means; a vocabulary table has its true vocabulary here, [V,C]
  int split_dim = -1;  // the split dim, -1 when every tensor rank holds all of it
  int64_t padded = 0;  // size of the split dim after padding; equals global[split_dim] when nothing is padded
  int index = 0;       // which part this rank holds
  int count = 1;       // of how many

  static ShardSpec replicated(Shape global);
  // Throws when `padded` does not divide by `count`. padded = 0 means "not padded".
  static ShardSpec split(Shape global, int dim, int index, int count, int64_t padded = 0);

  bool is_split() const { return split_dim >= 0 && count > 1; }
  Shape local() const;        // what is held in memory, padding included
  int64_t begin() const;      // first global index along the split dim; 0 when not split
  int64_t num_valid() const;  // held indices along the split dim that are not padding
  int64_t num_valid_elements() const;

  // Calls fn(local_offset, global_offset, length) for each run of elements that is contiguous both in the local and in
  // the global tensor, in ascending order; padding is left out.
  void for_each_run(const std::function<void(int64_t, int64_t, int64_t)>& fn) const;
};

}  // namespace ashlar
