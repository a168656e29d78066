// Casts on the CPU; the contract is kernels/cast.h.
#pragma once

#include <cstdint>

namespace ashlar::kernels::cpu {

// Out and In: float, BFloat16, Float16.
template <typename Out, typename In>
void cast(Out* out, const In* in, int64_t n);

}  // namespace ashlar::kernels::cpu
