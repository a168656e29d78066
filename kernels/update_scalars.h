// The scalars of an update that the host knows when it queues it, formed in one place for all devices. Plain like
// plain_types.h: nvcc reads it too.
#pragma once

#include <cmath>

#include "kernels/plain_types.h"

namespace ashlar::kernels {

// Pure. Sets all of scalars [kNumUpdateScalars] but kFactor and kSkip.
inline void set_host_scalars(double* scalars, const StepSettings& settings) {
  const auto step = static_cast<double>(settings.step);
  scalars[kBeta1] = settings.beta1;
  scalars[kBeta2] = settings.beta2;
  scalars[kOneMinusBeta1] = 1 - settings.beta1;
  scalars[kOneMinusBeta2] = 1 - settings.beta2;
  scalars[kRate] = settings.rate;
  scalars[kCorrectedRate] = settings.rate / (1 - std::pow(settings.beta1, step));
  scalars[kRootCorrection] = 1 / std::sqrt(1 - std::pow(settings.beta2, step));
  scalars[kEpsilon] = settings.epsilon;
}

}  // namespace ashlar::kernels
