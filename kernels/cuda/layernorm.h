// Layer normalisation on a GPU; the contract is kernels/layernorm.h. fp32, at most 8192 columns (more would not fit the
// registers of backward).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace ashlar::kernels::cuda {

inline constexpr int64_t kMaxLayernormColumns = 8192;

void layernorm_forward(float* y, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                       int64_t rows, int64_t columns, double epsilon, StreamHandle stream);

// Bytes of scratch that layernorm_backward needs: partial sums of dgamma and dbeta. Pure.
size_t layernorm_backward_scratch_bytes(int64_t rows, int64_t columns);

// dresidual may be null, or dx. The bits of dgamma and dbeta depend on rows and columns alone, not on the GPU.
void layernorm_backward(float* dx, float* dgamma, float* dbeta, const float* dy, const float* dresidual, const float* x,
                        const float* gamma, const float* mean, const float* rstd, int64_t rows, int64_t columns,
                        float* scratch, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
