// Dropout of the residual stream's branches on a GPU; the contract is kernels/dropout.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

// bias and residual may be null.
void dropout_forward(Element element, void* out, const void* x, const void* bias, const void* residual, int64_t rows,
                     int64_t columns, const Dropout& dropout, const SampleRows& place, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
