// Elements as the CPU computes with them: 16-bit types are read as fp32 and rounded once when stored.
#pragma once

#include <type_traits>

#include "runtime/base/dtype.h"

namespace ashlar::kernels::cpu {

// What a kernel over T computes in, which is also the type of its statistics: double for double, else float.
template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline float widen(float x) {
  return x;
}
inline double widen(double x) {
  return x;
}
inline float widen(BFloat16 x) {
  return to_float(x);
}
inline float widen(Float16 x) {
  return to_float(x);
}

// To nearest even.
template <typename T>
inline T narrow(Compute<T> x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bf16(x);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_f16(x);
  } else {
    return x;
  }
}

}  // namespace ashlar::kernels::cpu
