// Our own matrix products for 16-bit operands: bf16 or fp16 through the tensor cores, sums in fp32.
//
// The three products of a linear layer take their operands as they lie in memory: forward (b stored [n,k]), input
// gradient (b stored [k,n]) and weight gradient (a stored [k,m], b stored [k,n]). All epilogues of MatmulCall go into
// the store; a null bias is none.
#pragma once

#include <cstddef>

#include "kernels/cuda/matmul_call.h"
#include "kernels/cuda/stream_handle.h"

namespace ashlar::kernels::cuda {

// Pure. Whether gemm takes this call: 16-bit operands, not both of them transposed; a 16-bit result, or an fp32 one
// without epilogue; m, n, k at least 1; rows of a multiple of 8 elements, and pointers on 16 bytes.
bool gemm_supports(const MatmulCall& call);

// Pure. Where the tiles of c are too few to fill a GPU, the sum over k is cut into splits whose fp32 sums go through
// scratch. How many depends on m, n and k alone, so that every GPU gives the same bits.
inline constexpr size_t kGemmMostScratchBytes = 32 << 20;  // no shape needs more
size_t gemm_scratch_bytes(const MatmulCall& call);

// Stream-ordered. Throws kUsage when the call is not supported. Splits are added in ascending order of k.
void gemm(const MatmulCall& call, Scratch scratch, StreamHandle stream);

}  // namespace ashlar::kernels::cuda
