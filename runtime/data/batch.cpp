#include "runtime/data/batch.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/error.h"

namespace ashlar {

void fill_batch(MicroBatch& batch, const SampleSource& source, int64_t first) {
  const Shape& shape = batch.tokens.shape;
  DCHECK(shape.num_dims() == 2 && shape[1] == source.seq_length() && batch.targets.shape == shape &&
             batch.mask.shape == shape,
         "tokens {}, targets {}, mask {}, sequence length {}", shape.text(), batch.targets.shape.text(),
         batch.mask.shape.text(), source.seq_length());
  const auto length = static_cast<size_t>(shape[1]);
  for (int64_t row = 0; row < shape[0]; ++row) {
    const int64_t begin = row * shape[1];
    source.read(first + row, {batch.tokens.as<int32_t>() + begin, length},
                {batch.targets.as<int32_t>() + begin, length}, {batch.mask.as<float>() + begin, length});
  }
}

void sort_tokens(MicroBatch& batch) {
  const int32_t* tokens = batch.tokens.as<int32_t>();
  int32_t* order = batch.order.as<int32_t>();
  const int64_t count = batch.tokens.num_elements();
  DCHECK(batch.order.num_elements() == count, "an order of {} for {} tokens", batch.order.num_elements(), count);
  std::iota(order, order + count, 0);
  // No two compare equal, so the sort need not be a stable one, which would take memory.
  std::sort(order, order + count,
            [=](int32_t a, int32_t b) { return tokens[a] != tokens[b] ? tokens[a] < tokens[b] : a < b; });
}

}  // namespace ashlar
