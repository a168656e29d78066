// Compiled without fused multiply-add (-fmad=false), as the CPU's: an element's bits may not depend on where a range is
// cut or on which device it is updated. 28 bytes per parameter pass by and some 15 operations, so it costs no time.
#include "kernels/cuda/optimizer.h"

#include "kernels/cuda/gradient_element.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/update_scalars.h"

namespace ashlar::kernels::cuda {
namespace {

constexpr int kPack = 4;  // a 16-bit copy walks beside fp32

struct HostScalars {
  double v[kNumUpdateScalars];
};

// A chain of additions cannot be shared, so one thread adds what the block has fetched: some hundred numbers, one for
// each tensor and rank.
constexpr int kFinishThreads = 256;
__global__ void __launch_bounds__(kFinishThreads)
    finish_step_kernel(double* results, double* scalars, const double* totals, const double* squares,
                       int64_t num_squares, StepSettings settings, HostScalars known) {
  SMEM_STATIC(double, tile, kFinishThreads);
  const int thread = threadIdx.x;
  double total = 0;
  for (int64_t begin = 0; begin < num_squares; begin += kFinishThreads) {
    if (begin + thread < num_squares) {
      tile[thread] = squares[begin + thread];
    }
    __syncthreads();
    if (thread == 0) {
      const int64_t left = num_squares - begin;
      for (int i = 0; i < kFinishThreads && i < left; ++i) {
        total += tile[i];
      }
    }
    __syncthreads();
  }
  if (thread != 0) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kNumUpdateScalars; ++i) {
    scalars[i] = known.v[i];
  }
  const double num_targets = totals[1];
  const double scale = settings.nominal_targets / num_targets;
  const double loss = totals[0] / num_targets;
  const double norm = scale * sqrt(total);
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
  scalars[kFactor] = factor;
  scalars[kSkip] = num_targets == 0 || (settings.skip_not_finite && !finite) ? 1 : 0;
}

// The elements are under way before the scalars are asked whether anything is to be done.
template <typename Grad, typename Copy>
__global__ void __launch_bounds__(kFlatThreads)
    adamw_kernel(float* param, float* first_moment, float* second_moment, const Grad* grad, Copy* copy, int64_t n,
                 const double* scalars, double weight_decay, bool wide) {
  const int64_t i = flat_index<kPack>();
  const int64_t left = n - i;
  auto p = load_pack<kPack>(param + i, left, wide);
  auto m = load_pack<kPack>(first_moment + i, left, wide);
  auto v = load_pack<kPack>(second_moment + i, left, wide);
  const auto gradient = load_pack<kPack>(grad + i, left, wide);
  if (scalars[kSkip] != 0) {
    return;
  }
  const auto factor = static_cast<float>(scalars[kFactor]);
  const auto beta1 = static_cast<float>(scalars[kBeta1]);
  const auto beta2 = static_cast<float>(scalars[kBeta2]);
  const auto one_minus_beta1 = static_cast<float>(scalars[kOneMinusBeta1]);
  const auto one_minus_beta2 = static_cast<float>(scalars[kOneMinusBeta2]);
  const auto keep = static_cast<float>(1 - scalars[kRate] * weight_decay);
  const auto corrected_rate = static_cast<float>(scalars[kCorrectedRate]);
  const auto root_correction = static_cast<float>(scalars[kRootCorrection]);
  const auto epsilon = static_cast<float>(scalars[kEpsilon]);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    const float g = factor * gradient.v[k];
    m.v[k] = beta1 * m.v[k] + one_minus_beta1 * g;
    v.v[k] = beta2 * v.v[k] + one_minus_beta2 * g * g;
    p.v[k] = p.v[k] * keep - corrected_rate * m.v[k] / (sqrtf(v.v[k]) * root_correction + epsilon);
  }
  store_pack(param + i, p, left, wide);
  store_pack(first_moment + i, m, left, wide);
  store_pack(second_moment + i, v, left, wide);
  if (copy != nullptr) {
    store_pack(copy + i, p, left, wide);
  }
}

template <typename Grad, typename Copy>
__global__ void __launch_bounds__(kFlatThreads) sgd_kernel(float* param, const Grad* grad, Copy* copy, int64_t n,
                                                           const double* scalars, double weight_decay, bool wide) {
  const int64_t i = flat_index<kPack>();
  const int64_t left = n - i;
  auto p = load_pack<kPack>(param + i, left, wide);
  const auto g = load_pack<kPack>(grad + i, left, wide);
  if (scalars[kSkip] != 0) {
    return;
  }
  const auto keep = static_cast<float>(1 - scalars[kRate] * weight_decay);
  const auto scaled_rate = static_cast<float>(scalars[kRate] * scalars[kFactor]);
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    p.v[k] = p.v[k] * keep - scaled_rate * g.v[k];
  }
  store_pack(param + i, p, left, wide);
  if (copy != nullptr) {
    store_pack(copy + i, p, left, wide);
  }
}

// Calls function(Grad{}, Copy{}); a copy is always of 16 bits.
template <typename Function>
void with_types(Element grad_element, Element copy_element, Function function) {
  with_gradient_element(grad_element, [&](auto grad) {
    if (copy_element == Element::kF16) {
      function(grad, F16{});
    } else {
      function(grad, Bf16{});
    }
  });
}

}  // namespace

void finish_step(double* results, double* scalars, const double* totals, const double* squares, int64_t num_squares,
                 const StepSettings& settings, StreamHandle stream) {
  HostScalars known{};
  set_host_scalars(known.v, settings);
  LAUNCH(finish_step_kernel, dim3(1), dim3(kFinishThreads), 0, stream, results, scalars, totals, squares, num_squares,
         settings, known);
}

void adamw_step(float* param, float* first_moment, float* second_moment, const void* grad, Element grad_element,
                void* copy, Element copy_element, int64_t n, const double* scalars, double weight_decay,
                StreamHandle stream) {
  if (n == 0) {
    return;
  }
  with_types(grad_element, copy_element, [&](auto grad_zero, auto copy_zero) {
    using Grad = decltype(grad_zero);
    using Copy = decltype(copy_zero);
    LAUNCH((adamw_kernel<Grad, Copy>), flat_grid<kPack>(n), dim3(kFlatThreads), 0, stream, param, first_moment,
           second_moment, grad, copy, n, scalars, weight_decay,
           can_be_wide<float, kPack>({param, first_moment, second_moment}) && can_be_wide<Grad, kPack>({grad}) &&
               can_be_wide<Copy, kPack>({copy}));
  });
}

void sgd_step(float* param, const void* grad, Element grad_element, void* copy, Element copy_element, int64_t n,
              const double* scalars, double weight_decay, StreamHandle stream) {
  if (n == 0) {
    return;
  }
  with_types(grad_element, copy_element, [&](auto grad_zero, auto copy_zero) {
    using Grad = decltype(grad_zero);
    using Copy = decltype(copy_zero);
    LAUNCH((sgd_kernel<Grad, Copy>), flat_grid<kPack>(n), dim3(kFlatThreads), 0, stream, param, grad, copy, n, scalars,
           weight_decay,
           can_be_wide<float, kPack>({param}) && can_be_wide<Grad, kPack>({grad}) && can_be_wide<Copy, kPack>({copy}));
  });
}

}  // namespace ashlar::kernels::cuda
