#include "parallel/layers/dropout_site.h"

#include "kernels/dropout.h"
#include "runtime/base/rng.h"

namespace ashlar {

DropoutSite::DropoutSite(std::string_view name, double probability)
    : stream_(stream_of(name)), probability_(probability) {}

kernels::Dropout DropoutSite::mask(const LayerContext& context, int64_t first_head) const {
  if (!drops(context)) {
    return {};
  }
  // All four words of a mask's counter are indices of elements, so the rest goes into its key: two words of the site's
  // own stream.
  const PhiloxBlock block =
      PhiloxStream(context.masks.seed, RngPurpose::kDropout, stream_).block(static_cast<uint64_t>(context.masks.step));
  return {.probability = probability_,
          .key = {block[0], block[1]},
          .first_sample = context.masks.first_sample,
          .first_head = first_head};
}

ConstTensorView DropoutSite::backward(LayerContext& context, TensorView to, ConstTensorView dy) const {
  if (can_drop()) {
    const TensorView own = own_rows(context, to);
    kernels::dropout_backward(own, dy, mask(context), context.rows(), context.stream);
    dy = own;
  }
  return gather_rows(context, to, dy);
}

TensorView DropoutSite::backward_layout(Arena& arena, DType dtype, const BatchShape& shape, int64_t width) const {
  return can_drop() || shape.splits_rows() ? take_tensor(arena, dtype, {shape.batch, shape.seq, width}) : TensorView{};
}

}  // namespace ashlar
