// Compiled with -ffp-contract=off (kernels/CMakeLists.txt): a fused multiply-add in the vector body but not in the tail
// would let an element's bits depend on where its range was cut.
#include "kernels/cpu/optimizer.h"

#include <cmath>

#include "kernels/cpu/element.h"
#include "kernels/cpu/loops.h"
#include "kernels/update_scalars.h"

namespace ashlar::kernels::cpu {
namespace {

template <typename T, typename Copy>
void write_copy(Copy* copy, const T* param, int64_t begin, int64_t end) {
  if (copy == nullptr) {
    return;
  }
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) {
    copy[i] = narrow<Copy>(static_cast<float>(param[i]));
  }
}

}  // namespace

void finish_step(double* results, double* scalars, const double* totals, const double* squares, int64_t num_squares,
                 const StepSettings& settings) {
  double total = 0;
  for (int64_t i = 0; i < num_squares; ++i) {
    total += squares[i];
  }
  const double num_targets = totals[1];
  const double scale = settings.nominal_targets / num_targets;
  const double loss = totals[0] / num_targets;
  const double norm = scale * std::sqrt(total);
  double factor = scale;
  if (settings.clip_grad > 0 && norm > settings.clip_grad) {
    factor *= settings.clip_grad / norm;
  }
  const bool was_finite = results[kStepFinite] != 0 || !settings.skip_not_finite;
  const bool finite = was_finite && std::isfinite(loss) && std::isfinite(norm);
  results[kStepLoss] = loss;
  results[kStepGradNorm] = norm;
  results[kStepNumTargets] = num_targets;
  results[kStepFinite] = finite ? 1 : 0;
  set_host_scalars(scalars, settings);
  scalars[kFactor] = factor;
  scalars[kSkip] = num_targets == 0 || (settings.skip_not_finite && !finite) ? 1 : 0;
}

// Scalars are fp64 and rounded once; the update then needs one division and one root per element:
//   m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) * rate
//     = m * [rate / (1 - b1^t)] / (sqrt(v) * [1 / sqrt(1 - b2^t)] + eps)
template <typename T, typename Grad, typename Copy>
void adamw_step(T* param, T* first_moment, T* second_moment, const Grad* grad, Copy* copy, int64_t n,
                const double* scalars, double weight_decay) {
  if (scalars[kSkip] != 0) {
    return;
  }
  const T factor = static_cast<T>(scalars[kFactor]);
  const T beta1 = static_cast<T>(scalars[kBeta1]);
  const T beta2 = static_cast<T>(scalars[kBeta2]);
  const T one_minus_beta1 = static_cast<T>(scalars[kOneMinusBeta1]);
  const T one_minus_beta2 = static_cast<T>(scalars[kOneMinusBeta2]);
  const T keep = static_cast<T>(1 - scalars[kRate] * weight_decay);
  const T corrected_rate = static_cast<T>(scalars[kCorrectedRate]);
  const T root_correction = static_cast<T>(scalars[kRootCorrection]);
  const T epsilon = static_cast<T>(scalars[kEpsilon]);
  for_blocks(n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      const T g = factor * widen(grad[i]);
      const T m = beta1 * first_moment[i] + one_minus_beta1 * g;
      const T v = beta2 * second_moment[i] + one_minus_beta2 * g * g;
      first_moment[i] = m;
      second_moment[i] = v;
      param[i] = param[i] * keep - corrected_rate * m / (std::sqrt(v) * root_correction + epsilon);
    }
    write_copy(copy, param, begin, end);
  });
}

template <typename T, typename Grad, typename Copy>
void sgd_step(T* param, const Grad* grad, Copy* copy, int64_t n, const double* scalars, double weight_decay) {
  if (scalars[kSkip] != 0) {
    return;
  }
  const T keep = static_cast<T>(1 - scalars[kRate] * weight_decay);
  const T scaled_rate = static_cast<T>(scalars[kRate] * scalars[kFactor]);
  for_blocks(n, [=](int64_t begin, int64_t end) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      param[i] = param[i] * keep - scaled_rate * widen(grad[i]);
    }
    write_copy(copy, param, begin, end);
  });
}

#define INSTANTIATE(T, Grad, Copy)                                                                       \
  template void adamw_step(T*, T*, T*, const Grad*, Copy*, int64_t, const double*, double weight_decay); \
  template void sgd_step(T*, const Grad*, Copy*, int64_t, const double*, double weight_decay)
INSTANTIATE(float, float, BFloat16);
INSTANTIATE(float, float, Float16);
INSTANTIATE(float, BFloat16, BFloat16);
INSTANTIATE(float, BFloat16, Float16);
INSTANTIATE(double, double, BFloat16);
INSTANTIATE(double, double, Float16);
INSTANTIATE(double, BFloat16, BFloat16);
INSTANTIATE(double, BFloat16, Float16);
#undef INSTANTIATE

}  // namespace ashlar::kernels::cpu
