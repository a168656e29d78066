// The fp32 matrix product behind every matmul on the CPU: sgemm_onednn.cpp or sgemm_plain.cpp is linked.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cpu {

// c [m,n] = or += op(a) op(b), all row-major; a is stored [k,m] when transpose_a, b is stored [n,k] when transpose_b.
void sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, const float* b,
           bool accumulate, float* c);

}  // namespace ashlar::kernels::cpu
