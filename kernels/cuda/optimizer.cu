// Compiled without fused multiply-add (-fmad=false), as the CPU's: an element's bits may not depend on where a range is
// cut or on which device it is updated. 28 bytes per parameter pass by and some 15 operations, so it costs no time.
#include "kernels/cuda/optimizer.h"

#include <cmath>

#include "kernels/cuda/pack.cuh"

namespace ashlar::kernels::cuda {
namespace {

// The scalars of one step, formed in double and rounded once, as kernels/cpu/optimizer.cpp does.
struct AdamWScalars {
  float grad_scale, beta1, beta2, one_minus_beta1, one_minus_beta2;
  float keep;             // 1 - rate * decay
  float corrected_rate;   // rate / (1 - beta1^step)
  float root_correction;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
};

AdamWScalars scalars_of(const AdamWArgs& args) {
  const auto step = static_cast<double>(args.step);
  return {static_cast<float>(args.grad_scale),
          static_cast<float>(args.beta1),
          static_cast<float>(args.beta2),
          static_cast<float>(1 - args.beta1),
          static_cast<float>(1 - args.beta2),
          static_cast<float>(1 - args.rate * args.weight_decay),
          static_cast<float>(args.rate / (1 - std::pow(args.beta1, step))),
          static_cast<float>(1 / std::sqrt(1 - std::pow(args.beta2, step))),
          static_cast<float>(args.epsilon)};
}

__global__ void __launch_bounds__(kFlatThreads) adamw_kernel(float* param, float* first_moment, float* second_moment,
                                                             const float* grad, int64_t n, AdamWScalars s, bool wide) {
  const int64_t i = flat_index();
  const int64_t left = n - i;
  Pack p = load_pack(param + i, left, wide);
  Pack m = load_pack(first_moment + i, left, wide);
  Pack v = load_pack(second_moment + i, left, wide);
  const Pack gradient = load_pack(grad + i, left, wide);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    const float g = s.grad_scale * gradient.v[k];
    m.v[k] = s.beta1 * m.v[k] + s.one_minus_beta1 * g;
    v.v[k] = s.beta2 * v.v[k] + s.one_minus_beta2 * g * g;
    p.v[k] = p.v[k] * s.keep - s.corrected_rate * m.v[k] / (sqrtf(v.v[k]) * s.root_correction + s.epsilon);
  }
  store_pack(param + i, p, left, wide);
  store_pack(first_moment + i, m, left, wide);
  store_pack(second_moment + i, v, left, wide);
}

__global__ void __launch_bounds__(kFlatThreads)
    sgd_kernel(float* param, const float* grad, int64_t n, float keep, float scaled_rate, bool wide) {
  const int64_t i = flat_index();
  Pack p = load_pack(param + i, n - i, wide);
  const Pack g = load_pack(grad + i, n - i, wide);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    p.v[k] = p.v[k] * keep - scaled_rate * g.v[k];
  }
  store_pack(param + i, p, n - i, wide);
}

}  // namespace

void adamw_step(float* param, float* first_moment, float* second_moment, const float* grad, int64_t n,
                const AdamWArgs& args, StreamHandle stream) {
  if (n == 0) {
    return;
  }
  LAUNCH(adamw_kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, param, first_moment, second_moment, grad, n,
         scalars_of(args), can_be_wide({param, first_moment, second_moment, grad}));
}

void sgd_step(float* param, const float* grad, int64_t n, double rate, double weight_decay, double grad_scale,
              StreamHandle stream) {
  if (n == 0) {
    return;
  }
  LAUNCH(sgd_kernel, flat_grid(n), dim3(kFlatThreads), 0, stream, param, grad, n, 1 - rate * weight_decay,
         rate * grad_scale, can_be_wide({param, grad}));
}

}  // namespace ashlar::kernels::cuda
