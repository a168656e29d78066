// Random numbers on the CPU; the contract is kernels/random.h.
#pragma once

#include <cstdint>

#include "runtime/base/rng.h"

namespace ashlar::kernels::cpu {

void fill_normal(float* out, const PhiloxStream& random, uint64_t first, double mean, double std, int64_t n);
void fill_uniform(float* out, const PhiloxStream& random, uint64_t first, int64_t n);

}  // namespace ashlar::kernels::cpu
