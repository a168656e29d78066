// Layer normalisation on the CPU; the contract is kernels/layernorm.h. T is float, double, BFloat16 or Float16.
#pragma once

#include <cstdint>

#include "kernels/cpu/element.h"

namespace ashlar::kernels::cpu {

template <typename T>
void layernorm_forward(T* y, Compute<T>* mean, Compute<T>* rstd, const T* x, const T* gamma, const T* beta,
                       int64_t rows, int64_t columns, double epsilon);

// dresidual may be null.
template <typename T>
void layernorm_backward(T* dx, Compute<T>* dgamma, Compute<T>* dbeta, const T* dy, const T* dresidual, const T* x,
                        const T* gamma, const Compute<T>* mean, const Compute<T>* rstd, int64_t rows, int64_t columns);

}  // namespace ashlar::kernels::cpu
