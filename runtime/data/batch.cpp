#include "runtime/data/batch.h"

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

}  // namespace ashlar
