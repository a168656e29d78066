// GELU in device code: one text for the elementwise kernels and for the epilogues of matrix products, so that a fused
// pair and an unfused one give the same bits.
#pragma once

#include "kernels/cuda/device.cuh"

namespace ashlar::kernels::cuda {

// GELU, tanh form: x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3), as on the CPU.
struct GeluTanh {
  static DEVICE_INLINE float gate(float x) {
    constexpr float kScale = -2 * 0.79788456080286535588f;
    return 1.0f / (1.0f + __expf(kScale * (x + 0.044715f * x * x * x)));
  }
  static DEVICE_INLINE float value(float x) { return x * gate(x); }
  static DEVICE_INLINE float slope(float x) {
    const float s = gate(x);
    const float near = fminf(fmaxf(x, -16.0f), 16.0f);  // beyond, s (1 - s) is 0 and x^2 might overflow
    const float inner = 2 * 0.79788456080286535588f * (1.0f + 3 * 0.044715f * near * near);
    return s + near * s * (1.0f - s) * inner;
  }
};

// GELU, erf form: x Phi(x).
struct GeluErf {
  static DEVICE_INLINE float normal_cdf(float x) { return 0.5f * erfcf(-0.70710678118654752440f * x); }
  static DEVICE_INLINE float value(float x) { return x * normal_cdf(x); }
  static DEVICE_INLINE float slope(float x) {
    constexpr float kDensity = 0.39894228040143267794f;  // 1 / sqrt(2 pi)
    return normal_cdf(x) + x * kDensity * __expf(-0.5f * x * x);
  }
};

}  // namespace ashlar::kernels::cuda
