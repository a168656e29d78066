#include "parallel/layers/dropout_site.h"

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

}  // namespace ashlar
