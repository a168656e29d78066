// Products of 16-bit matrices on the CPU: blocks of the operands become fp32, sgemm multiplies them, and a sum is
// rounded once, when all of it is there.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cpu {

// c [m,n] (+)= op(a) op(b) + bias [n]; bias may be null. T is BFloat16 or Float16, Out is T or float. Allocates about 9
// MB a thread at its first call, and nothing later.
template <typename Out, typename T>
void half_matmul(Out* c, const T* a, bool transpose_a, const T* b, bool transpose_b, int64_t m, int64_t n, int64_t k,
                 bool accumulate, const T* bias);

}  // namespace ashlar::kernels::cpu
