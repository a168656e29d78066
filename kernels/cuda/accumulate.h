// Sums of gradients on a GPU; the contract is kernels/accumulate.h. The bits are those of the CPU, NaN's payload apart.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

// acc += x; the elements are fp32 or bf16.
void accumulate(void* acc, Element acc_element, const void* x, Element x_element, int64_t n, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
