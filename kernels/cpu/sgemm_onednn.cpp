#include <dnnl.h>

#include "kernels/cpu/sgemm.h"
#include "runtime/base/error.h"

namespace ashlar::kernels::cpu {

void sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a, const float* b,
           bool accumulate, float* c) {
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a,
                                          transpose_a ? m : k, b, transpose_b ? k : n, accumulate ? 1.0f : 0.0f, c, n);
  DCHECK(status == dnnl_success, "oneDNN's sgemm of {} x {} x {} failed with status {}", m, n, k,
         static_cast<int>(status));
}

}  // namespace ashlar::kernels::cpu
