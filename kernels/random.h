// Random numbers in device memory, drawn as runtime/base/rng.h defines them.
#pragma once

#include "runtime/base/rng.h"
#include "runtime/tensor/tensor.h"

namespace ashlar::kernels {

// Stream-ordered. out [n] fp32 = mean + std * random.normal(first + i), on the CPU to the bit; a GPU computes the
// normal number in fp32 and is off by its rounding.
void fill_normal(TensorView out, const PhiloxStream& random, uint64_t first, double mean, double std, Stream& stream);
// Stream-ordered. out [n] fp32 = random.word(first + i) rounded down to 24 bits, as a number in [0, 1): the same bits
// on every device.
void fill_uniform(TensorView out, const PhiloxStream& random, uint64_t first, Stream& stream);

}  // namespace ashlar::kernels
