#include "kernels/cpu/gemm_plain.h"
#include "kernels/cpu/sgemm.h"

namespace ashlar::kernels::cpu {

void sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, const float* b,
           bool accumulate, float* c) {
  gemm_plain(transpose_a, transpose_b, m, n, k, a, b, accumulate, c);
}

}  // namespace ashlar::kernels::cpu
