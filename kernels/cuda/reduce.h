// Sums in a fixed order on a GPU; the contract is kernels/reduce.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

// The bits of a block depend on its elements alone, not on where it lies; they are not those of the CPU, whose order
// within a block differs. The element is fp32 or bf16.
void sum_of_squares(double* blocks, const void* x, Element element, int64_t n, StreamHandle stream);
// The bits of the CPU.
void sum_in_order(double* total, const float* x, int64_t n, StreamHandle stream);
void sum_in_order(double* total, const double* x, int64_t n, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
