// Every call of the CUDA runtime goes through here. Private to the folders that include CUDA's headers.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace ashlar {

// Throws an Error with the call, the device and CUDA's own name and text of the failure. An error that some earlier
// work left behind comes out of whatever call is next, so the text says "at", not "in".
void check_cuda(cudaError_t status, const char* call, int device_index,
                std::source_location place = std::source_location::current());

// For destructors, which cannot throw: the same text on stderr, unless an exception is on its way.
void report_cuda(cudaError_t status, const char* call, int device_index) noexcept;

}  // namespace ashlar
