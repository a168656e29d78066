#include "runtime/tensor/shard_spec.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ashlar {

ShardSpec ShardSpec::replicated(Shape global) {
  ShardSpec spec;
  spec.global = global;
  return spec;
}

ShardSpec ShardSpec::split(Shape global, int dim, int index, int count, int64_t padded) {
  ShardSpec spec{global, dim, padded == 0 ? global[dim] : padded, index, count};
  DCHECK(spec.padded >= global[dim] && spec.padded % count == 0, "dim {} of {} padded to {} in {} parts", dim,
         global.text(), spec.padded, count);
  return spec;
}

Shape ShardSpec::local() const {
  Shape shape = global;
  if (split_dim >= 0) {
    shape.set(split_dim, padded / count);
  }
  return shape;
}

int64_t ShardSpec::begin() const {
  return split_dim < 0 ? 0 : index * (padded / count);
}

int64_t ShardSpec::num_valid() const {
  return split_dim < 0 ? 0 : std::clamp<int64_t>(global[split_dim] - begin(), 0, padded / count);
}

int64_t ShardSpec::num_valid_elements() const {
  return split_dim < 0 ? global.num_elements()
                       : (global[split_dim] == 0 ? 0 : global.num_elements() / global[split_dim] * num_valid());
}

void ShardSpec::for_each_run(const std::function<void(int64_t, int64_t, int64_t)>& fn) const {
  if (split_dim < 0) {
    fn(0, 0, global.num_elements());
    return;
  }
  int64_t outer = 1;  // dims before the split one
  int64_t inner = 1;  // dims behind it
  for (int dim = 0; dim < global.num_dims(); ++dim) {
    (dim < split_dim ? outer : inner) *= dim == split_dim ? 1 : global[dim];
  }
  const int64_t length = num_valid() * inner;
  if (length == 0) {
    return;
  }
  for (int64_t row = 0; row < outer; ++row) {
    fn(row * (padded / count) * inner, (row * global[split_dim] + begin()) * inner, length);
  }
}

}  // namespace ashlar
