// Activations and elementwise sums on a GPU; the contract is kernels/activation.h. All operands are of `element`,
// computed in fp32 and rounded once.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

void activation_forward(Element element, void* y, const void* x, int64_t n, Activation activation, StreamHandle stream);
void activation_backward(Element element, void* dx, const void* dy, const void* x, int64_t n, Activation activation,
                         StreamHandle stream);
// bias may be null.
void add_bias_residual(Element element, void* out, const void* a, const void* b, const void* bias, int64_t rows,
                       int64_t columns, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
