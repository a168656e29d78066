// Dropout on the branches that add to the residual stream, fused with the bias and the sum behind it.
#pragma once

#include "kernels/plain_types.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// The mask, as Dropout (plain_types.h) for attention: element (sample, position, channel) is kept when word channel % 4
// of philox_4x32_10(counter {channel / 4, position, 0, sample}, key) is at least probability * 2^32, and kept values
// are scaled by 1 / (1 - probability). Position and sample are those of the row as SampleRows says, the sample counted
// from dropout.first_sample, modulo 2^32. Nobody stores a mask: backward makes it again.

// Stream-ordered. out [n,C] = residual [n,C] (when it has data) + dropout(x [n,C] + bias [C] (when it has data));
// out may be x or residual. The probability is above 0. n is whatever comes before the last dim.
void dropout_forward(TensorView out, ConstTensorView x, ConstTensorView bias, ConstTensorView residual,
                     const Dropout& dropout, const SampleRows& place, Stream& stream);
// Stream-ordered. dx [n,C] = dy [n,C] through the same mask and factor; dx may be dy.
void dropout_backward(TensorView dx, ConstTensorView dy, const Dropout& dropout, const SampleRows& place,
                      Stream& stream);

}  // namespace ashlar::kernels
