// Layer normalisation on a GPU; the contract is kernels/layernorm.h. Rows, gamma and beta are of `element`; statistics,
// parameter gradients and all arithmetic are fp32. A row lives in registers, so at most kMaxLayernormColumns columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

void layernorm_forward(Element element, void* y, float* mean, float* rstd, const void* x, const void* gamma,
                       const void* beta, int64_t rows, int64_t columns, double epsilon, StreamHandle stream);

// sum = a + b + bias, rounded to `element`; y = norm(sum). bias may be null; sum may be a or b.
void residual_layernorm_forward(Element element, void* y, void* sum, float* mean, float* rstd, const void* a,
                                const void* b, const void* bias, const void* gamma, const void* beta, int64_t rows,
                                int64_t columns, double epsilon, StreamHandle stream);

// Bytes of scratch that layernorm_backward needs: partial sums of dgamma and dbeta, 24 MiB at
// most. Pure.
size_t layernorm_backward_scratch_bytes(int64_t rows, int64_t columns);

// dresidual may be null, or dx. The bits of dgamma and dbeta depend on rows and columns alone, not on the GPU.
void layernorm_backward(Element element, void* dx, float* dgamma, float* dbeta, const void* dy, const void* dresidual,
                        const void* x, const void* gamma, const float* mean, const float* rstd, int64_t rows,
                        int64_t columns, Scratch scratch, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
