#include "kernels/cuda/cast.h"

#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

template <typename Out, typename In, int kPack>
__global__ void __launch_bounds__(kFlatThreads) cast_kernel(Out* out, const In* in, int64_t n, bool wide) {
  const int64_t i = flat_index<kPack>();
  store_pack(out + i, load_pack<kPack>(in + i, n - i, wide), n - i, wide);
}

}  // namespace

void cast(void* out, Element out_element, const void* in, Element in_element, int64_t n, StreamHandle stream) {
  if (n == 0) {
    return;
  }
  with_element(out_element, [&](auto out_zero) {
    with_element(in_element, [&](auto in_zero) {
      using Out = decltype(out_zero);
      using In = decltype(in_zero);
      constexpr int kPack = sizeof(Out) == 2 && sizeof(In) == 2 ? 8 : 4;
      LAUNCH((cast_kernel<Out, In, kPack>), flat_grid<kPack>(n), dim3(kFlatThreads), 0, stream, out, in, n,
             can_be_wide<Out, kPack>({out}) && can_be_wide<In, kPack>({in}));
    });
  });
}

}  // namespace ashlar::kernels::cuda
