// A cudaStream_t without CUDA's headers, so that those who call these kernels need not be compiled by nvcc.
#pragma once

struct CUstream_st;

namespace ashlar::kernels::cuda {

using StreamHandle = CUstream_st*;

}  // namespace ashlar::kernels::cuda
