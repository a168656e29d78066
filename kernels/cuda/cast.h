// Casts on a GPU; the contract is kernels/cast.h. The bits are those of the CPU, NaN's payload apart.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

void cast(void* out, Element out_element, const void* in, Element in_element, int64_t n, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
