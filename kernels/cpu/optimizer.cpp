// Compiled with -ffp-contract=off (kernels/CMakeLists.txt): a fused multiply-add in the vector body but not in the tail
// would let an element's bits depend on where its range was cut.
#include "kernels/cpu/optimizer.h"

#include <cmath>

#include "kernels/cpu/loops.h"

namespace ashlar::kernels::cpu {

// Scalars are formed in double and rounded once; the update then needs one division and one root per element:
//   m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) * rate
//     = m * [rate / (1 - b1^t)] / (sqrt(v) * [1 / sqrt(1 - b2^t)] + eps)
template <typename T>
void adamw_step(T* param, T* first_moment, T* second_moment, const T* grad, int64_t n, const AdamWArgs& args) {
  const auto step = static_cast<double>(args.step);
  const T grad_scale = static_cast<T>(args.grad_scale);
  const T beta1 = static_cast<T>(args.beta1);
  const T beta2 = static_cast<T>(args.beta2);
  const T one_minus_beta1 = static_cast<T>(1 - args.beta1);
  const T one_minus_beta2 = static_cast<T>(1 - args.beta2);
  const T keep = static_cast<T>(1 - args.rate * args.weight_decay);
  const T corrected_rate = static_cast<T>(args.rate / (1 - std::pow(args.beta1, step)));
  const T root_correction = static_cast<T>(1 / std::sqrt(1 - std::pow(args.beta2, step)));
  const T epsilon = static_cast<T>(args.epsilon);
  for_blocks(n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      const T g = grad_scale * grad[i];
      const T m = beta1 * first_moment[i] + one_minus_beta1 * g;
      const T v = beta2 * second_moment[i] + one_minus_beta2 * g * g;
      first_moment[i] = m;
      second_moment[i] = v;
      param[i] = param[i] * keep - corrected_rate * m / (std::sqrt(v) * root_correction + epsilon);
    }
  });
}

template <typename T>
void sgd_step(T* param, const T* grad, int64_t n, double rate, double weight_decay, double grad_scale) {
  const T keep = static_cast<T>(1 - rate * weight_decay);
  const T scaled_rate = static_cast<T>(rate * grad_scale);
  for_blocks(n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      param[i] = param[i] * keep - scaled_rate * grad[i];
    }
  });
}

template void adamw_step(float*, float*, float*, const float*, int64_t, const AdamWArgs&);
template void adamw_step(double*, double*, double*, const double*, int64_t, const AdamWArgs&);
template void sgd_step(float*, const float*, int64_t, double, double, double);
template void sgd_step(double*, const double*, int64_t, double, double, double);

}  // namespace ashlar::kernels::cpu
