// The gradient of a bias on a GPU; the contract is bias_backward of kernels/matmul.h. dy is of `element`, sums are
// fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/plain_types.h"

namespace ashlar::kernels::cuda {

// Bytes of scratch that bias_backward needs: partial sums, about 1 MiB. Pure.
size_t bias_backward_scratch_bytes(int64_t rows, int64_t columns);

// The order of the sum depends on rows and columns alone, neither on the GPU nor on the element.
void bias_backward(Element element, float* db, const void* dy, int64_t rows, int64_t columns, bool add, Scratch scratch,
                   StreamHandle stream);

}  // namespace ashlar::kernels::cuda
