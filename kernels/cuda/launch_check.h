// How a refused launch becomes an Error. Apart from device.cuh, so that nvcc need not parse fmt.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cuda {

// Throws when `cuda_error`, a cudaError_t, is not cudaSuccess.
void check_launch(int cuda_error, const char* kernel);

// Throws when a size that the user chose with `flag` is more than a kernel takes.
void check_limit(const char* op, const char* quantity, int64_t value, int64_t limit, const char* flag);

}  // namespace ashlar::kernels::cuda
