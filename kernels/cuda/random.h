// Random numbers on a GPU; the contract is kernels/random.h. Uniform numbers have the bits of the CPU, normal ones are
// off by rounding: Box-Muller in fp32 instead of double.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

void fill_normal(float* out, PhiloxKey key, uint64_t first, double mean, double std, int64_t n, StreamHandle stream);
void fill_uniform(float* out, PhiloxKey key, uint64_t first, int64_t n, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
