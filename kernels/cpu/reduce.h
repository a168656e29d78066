// Sums in a fixed order on the CPU; the contract is kernels/reduce.h.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cpu {

// T: float, double, BFloat16.
template <typename T>
void sum_of_squares(double* blocks, const T* x, int64_t n);
// T: float, double.
template <typename T>
void sum_in_order(double* total, const T* x, int64_t n);

}  // namespace ashlar::kernels::cpu
