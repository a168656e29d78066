// Activations and elementwise sums on a GPU; the contract is kernels/activation.h. fp32.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

void activation_forward(float* y, const float* x, int64_t n, Activation activation, StreamHandle stream);
void activation_backward(float* dx, const float* dy, const float* x, int64_t n, Activation activation,
                         StreamHandle stream);
// bias may be null.
void add_bias_residual(float* out, const float* a, const float* b, const float* bias, int64_t rows, int64_t columns,
                       StreamHandle stream);
void add(float* y, const float* x, int64_t n, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
