#include "kernels/cpu/activation.h"

#include <cmath>
#include <numbers>

#include "kernels/cpu/element.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/vector_math.h"

namespace ashlar::kernels::cpu {
namespace {

// GELU, tanh form: 0.5 x (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x^3). As (1 + tanh u) / 2 = 1 / (1 + e^-2u),
// one exponential and one division do, and small values keep their digits.
struct GeluTanh {
  template <typename T>
  static T gate(T x) {
    constexpr T kScale = static_cast<T>(-2 * 0.79788456080286535588);
    return T{1} / (T{1} + exp_fast(kScale * (x + static_cast<T>(0.044715) * x * x * x)));
  }
  template <typename T>
  static T value(T x) {
    return x * gate(x);
  }
  template <typename T>
  static T slope(T x) {
    const T s = gate(x);
    // From |x| = 16 on, s (1 - s) is 0 to the last bit; clamping keeps x^2 from overflowing there.
    T near = x < T{-16} ? T{-16} : x;
    near = near > T{16} ? T{16} : near;
    const T inner = static_cast<T>(2 * 0.79788456080286535588) * (T{1} + static_cast<T>(3 * 0.044715) * near * near);
    return s + near * s * (T{1} - s) * inner;
  }
};

// The normal distribution function Phi. In fp32: with z = |x| / sqrt(2) and t = 1 / (1 + 0.32 z),
// erfc(z) = t P(t) e^-z^2 (the form of Abramowitz and Stegun 7.1.26), P of degree 7 interpolated at the Chebyshev nodes
// for 0 <= z <= 9: 2.4e-8 from the true erfc before rounding.
inline float normal_cdf(float x) {
  const float z = std::abs(x) * std::numbers::sqrt2_v<float> * 0.5f;
  const float t = 1.0f / (1.0f + 0.32f * z);
  float p = -0.1674450071837045f;
  p = p * t + 0.6572627142122094f;
  p = p * t - 0.6688887948201249f;
  p = p * t + 0.6841088693677173f;
  p = p * t - 0.09399877640664211f;
  p = p * t + 0.23690750277897965f;
  p = p * t + 0.1709150384717354f;
  p = p * t + 0.18113846376646148f;
  const float upper = 0.5f * t * p * exp_fast(-0.5f * x * x);
  return x > 0.0f ? 1.0f - upper : upper;
}
inline double normal_cdf(double x) {
  return 0.5 * std::erfc(-x * std::numbers::sqrt2 * 0.5);
}

// GELU, erf form: x Phi(x); its slope is Phi(x) + x phi(x).
struct GeluErf {
  template <typename T>
  static T value(T x) {
    return x * normal_cdf(x);
  }
  template <typename T>
  static T slope(T x) {
    constexpr T kDensity = static_cast<T>(0.39894228040143267794);  // 1 / sqrt(2 pi)
    return normal_cdf(x) + x * kDensity * exp_fast(static_cast<T>(-0.5) * x * x);
  }
};

template <typename Function, typename T>
void forward(T* y, const T* x, int64_t n) {
  for_blocks(n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      y[i] = narrow<T>(Function::value(widen(x[i])));
    }
  });
}

template <typename Function, typename T>
void backward(T* dx, const T* dy, const T* x, int64_t n) {
  for_blocks(n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      dx[i] = narrow<T>(widen(dy[i]) * Function::slope(widen(x[i])));
    }
  });
}

}  // namespace

template <typename T>
void activation_forward(T* y, const T* x, int64_t n, Activation activation) {
  activation == Activation::kGeluTanh ? forward<GeluTanh>(y, x, n) : forward<GeluErf>(y, x, n);
}

template <typename T>
void activation_backward(T* dx, const T* dy, const T* x, int64_t n, Activation activation) {
  activation == Activation::kGeluTanh ? backward<GeluTanh>(dx, dy, x, n) : backward<GeluErf>(dx, dy, x, n);
}

template <typename T>
void add_bias_residual(T* out, const T* a, const T* b, const T* bias, int64_t rows, int64_t columns) {
  if (bias == nullptr) {
    for_blocks(rows * columns, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) {
        out[i] = narrow<T>(widen(a[i]) + widen(b[i]));
      }
    });
    return;
  }
#pragma omp parallel for schedule(static) if (rows * columns > kBlock)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * columns;
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      out[at + c] = narrow<T>(widen(a[at + c]) + widen(b[at + c]) + widen(bias[c]));
    }
  }
}

#define INSTANTIATE(T)                                                            \
  template void activation_forward(T*, const T*, int64_t, Activation);            \
  template void activation_backward(T*, const T*, const T*, int64_t, Activation); \
  template void add_bias_residual(T*, const T*, const T*, const T*, int64_t, int64_t)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
