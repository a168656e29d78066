// Which of a GPU's matrix products a call goes to.
#pragma once

#include "kernels/cuda/matmul_call.h"
#include "kernels/gpu_stream.h"

namespace ashlar::kernels {

// Stream-ordered. By --gemm: our own kernel or cuBLASLt; `auto` takes our own for 16-bit products with an activation in
// them, where it saves a pass over memory. What cuBLASLt does not fuse runs as two kernels, with the same bits where an
// activation is fused. Throws when the chosen one does not take the call.
void gpu_matmul(GpuStream& gpu, const cuda::MatmulCall& call);

}  // namespace ashlar::kernels
