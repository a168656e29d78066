// Layer normalisation on the CPU; the contract is kernels/layernorm.h. T is float or double.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cpu {

template <typename T>
void layernorm_forward(T* y, T* mean, T* rstd, const T* x, const T* gamma, const T* beta, int64_t rows, int64_t columns,
                       double epsilon);

// dresidual may be null.
template <typename T>
void layernorm_backward(T* dx, T* dgamma, T* dbeta, const T* dy, const T* dresidual, const T* x, const T* gamma,
                        const T* mean, const T* rstd, int64_t rows, int64_t columns);

}  // namespace ashlar::kernels::cpu
