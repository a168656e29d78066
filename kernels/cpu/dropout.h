// Dropout of the residual stream's branches on the CPU; the contract is kernels/dropout.h. T is float, double, BFloat16
// or Float16.
#pragma once

#include <cstdint>

#include "kernels/plain_types.h"

namespace ashlar::kernels::cpu {

// bias and residual may be null.
template <typename T>
void dropout_forward(T* out, const T* x, const T* bias, const T* residual, int64_t rows, int64_t columns,
                     const Dropout& dropout, const SampleRows& place);

}  // namespace ashlar::kernels::cpu
