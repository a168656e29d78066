// Activations and elementwise sums on the CPU; the contract is kernels/activation.h. T is float, double, BFloat16 or
// Float16.
#pragma once

#include <cstdint>

#include "kernels/activation.h"

namespace ashlar::kernels::cpu {

template <typename T>
void activation_forward(T* y, const T* x, int64_t n, Activation activation);
template <typename T>
void activation_backward(T* dx, const T* dy, const T* x, int64_t n, Activation activation);
// bias may be null.
template <typename T>
void add_bias_residual(T* out, const T* a, const T* b, const T* bias, int64_t rows, int64_t columns);

}  // namespace ashlar::kernels::cpu
