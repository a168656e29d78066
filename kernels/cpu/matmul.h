// CPU matrix products; the contract is kernels/matmul.h. T is float, double, BFloat16 or Float16.
#pragma once

#include <cstdint>

#include "kernels/cpu/element.h"

namespace ashlar::kernels::cpu {

// c [m,n] = or += op(a) op(b). Out is T, or float.
template <typename Out, typename T>
void matmul(Out* c, const T* a, bool transpose_a, const T* b, bool transpose_b, int64_t m, int64_t n, int64_t k,
            bool accumulate);
// y [r,n] = x [r,k] w [n,k]^T + bias [n]; bias may be null.
template <typename T>
void linear_forward(T* y, const T* x, const T* w, const T* bias, int64_t r, int64_t n, int64_t k);
// db [n] = or += column sums of dy [r,n].
template <typename T>
void bias_backward(Compute<T>* db, const T* dy, int64_t r, int64_t n, bool accumulate);

}  // namespace ashlar::kernels::cpu
