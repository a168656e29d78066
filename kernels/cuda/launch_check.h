// How a refused launch becomes an Error. Apart from device.cuh, so that nvcc need not parse fmt.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar::kernels::cuda {

// Throws when `cuda_error`, a cudaError_t, is not cudaSuccess.
void check_launch(int cuda_error, const char* kernel);

// Throws when a size that the user chose with `flag` is more than a kernel takes.
void check_limit(const char* op, const char* quantity, int64_t value, int64_t limit, const char* flag);

// Throws when a caller left less scratch than the function beside the kernel asks for.
void check_scratch(const char* op, size_t bytes, size_t needed_bytes);

}  // namespace ashlar::kernels::cuda
