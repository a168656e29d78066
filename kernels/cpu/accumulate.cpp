#include "kernels/cpu/accumulate.h"

#include "kernels/cpu/element.h"
#include "kernels/cpu/loops.h"

namespace ashlar::kernels::cpu {

template <typename Acc, typename X>
void accumulate(Acc* acc, const X* x, int64_t n) {
  for_blocks(n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      acc[i] = narrow<Acc>(widen(acc[i]) + widen(x[i]));
    }
  });
}

template void accumulate(float*, const float*, int64_t);
template void accumulate(float*, const BFloat16*, int64_t);
template void accumulate(BFloat16*, const float*, int64_t);
template void accumulate(BFloat16*, const BFloat16*, int64_t);
template void accumulate(double*, const double*, int64_t);

}  // namespace ashlar::kernels::cpu
