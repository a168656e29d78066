// How a refused launch becomes an Error. Apart from device.cuh, so that nvcc need not parse fmt.
#pragma once

namespace ashlar::kernels::cuda {

// Throws when `cuda_error`, a cudaError_t, is not cudaSuccess.
void check_launch(int cuda_error, const char* kernel);

}  // namespace ashlar::kernels::cuda
