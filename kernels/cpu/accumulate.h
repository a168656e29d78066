// Sums of gradients on the CPU; the contract is kernels/accumulate.h.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cpu {

// acc += x. Acc and X: float, BFloat16; or both double.
template <typename Acc, typename X>
void accumulate(Acc* acc, const X* x, int64_t n);

}  // namespace ashlar::kernels::cpu
