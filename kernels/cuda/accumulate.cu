#include "kernels/cuda/accumulate.h"

#include "kernels/cuda/gradient_element.cuh"
#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

template <typename Acc, typename X, int kPack>
__global__ void __launch_bounds__(kFlatThreads) accumulate_kernel(Acc* acc, const X* x, int64_t n, bool wide) {
  const int64_t i = flat_index<kPack>();
  const int64_t left = n - i;
  auto sum = load_pack<kPack>(acc + i, left, wide);
  const auto part = load_pack<kPack>(x + i, left, wide);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    sum.v[k] += part.v[k];
  }
  store_pack(acc + i, sum, left, wide);
}

}  // namespace

void accumulate(void* acc, Element acc_element, const void* x, Element x_element, int64_t n, StreamHandle stream) {
  if (n == 0) {
    return;
  }
  with_gradient_element(acc_element, [&](auto acc_zero) {
    with_gradient_element(x_element, [&](auto x_zero) {
      using Acc = decltype(acc_zero);
      using X = decltype(x_zero);
      constexpr int kPack = sizeof(Acc) == 2 && sizeof(X) == 2 ? 8 : 4;
      LAUNCH((accumulate_kernel<Acc, X, kPack>), flat_grid<kPack>(n), dim3(kFlatThreads), 0, stream, acc, x, n,
             can_be_wide<Acc, kPack>({acc}) && can_be_wide<X, kPack>({x}));
    });
  });
}

}  // namespace ashlar::kernels::cuda
