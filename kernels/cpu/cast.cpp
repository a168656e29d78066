#include "kernels/cpu/cast.h"

#include "kernels/cpu/element.h"
#include "kernels/cpu/loops.h"

namespace ashlar::kernels::cpu {

template <typename Out, typename In>
void cast(Out* out, const In* in, int64_t n) {
  for_blocks(n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      if constexpr (std::is_same_v<Out, In>) {
        out[i] = in[i];  // to the bit, whatever it is
      } else {
        out[i] = narrow<Out>(widen(in[i]));
      }
    }
  });
}

template void cast(float*, const float*, int64_t);
template void cast(float*, const BFloat16*, int64_t);
template void cast(float*, const Float16*, int64_t);
template void cast(BFloat16*, const float*, int64_t);
template void cast(BFloat16*, const BFloat16*, int64_t);
template void cast(BFloat16*, const Float16*, int64_t);
template void cast(Float16*, const float*, int64_t);
template void cast(Float16*, const BFloat16*, int64_t);
template void cast(Float16*, const Float16*, int64_t);

}  // namespace ashlar::kernels::cpu
