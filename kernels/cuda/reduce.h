// Sums in a fixed order on a GPU; the contract is kernels/reduce.h. fp32 in (sum_in_order: or fp64), fp64 out.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace ashlar::kernels::cuda {

// The bits of a block depend on its elements alone, not on where it lies; they are not those of the CPU, whose order
// within a block differs.
void sum_of_squares(double* blocks, const float* x, int64_t n, StreamHandle stream);
// The bits of the CPU.
void sum_in_order(double* total, const float* x, int64_t n, StreamHandle stream);
void sum_in_order(double* total, const double* x, int64_t n, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
