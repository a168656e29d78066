#include "kernels/optimizer.h"

#include "kernels/checks.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {
namespace {

void check_copy(std::string_view op, const TensorView& copy, int64_t n) {
  if (copy.data != nullptr) {
    check_view(op, "copy", copy, copy.dtype == DType::kF16 ? DType::kF16 : DType::kBF16, n);
  }
}

// Gradients have the parameters' type, or are bf16.
void check_gradient(std::string_view op, const ConstTensorView& grad, const TensorView& param) {
  const DType dtype = grad.dtype == DType::kBF16 ? DType::kBF16 : param.dtype;
  check_view(op, "grad", grad, dtype, param.num_elements());
}

Element copy_element(const TensorView& copy) {
  return copy.dtype == DType::kF16 ? Element::kF16 : Element::kBf16;
}

// Calls function(Copy*), null without a copy.
template <typename Function>
void with_copy(TensorView copy, Function function) {
  if (copy.data == nullptr) {
    function(static_cast<BFloat16*>(nullptr));
  } else if (copy.dtype == DType::kBF16) {
    function(copy.as<BFloat16>());
  } else {
    function(copy.as<Float16>());
  }
}

// Calls function(T{}, Grad{}) with the types of parameters and gradients.
template <typename Function>
void with_types(const TensorView& param, const ConstTensorView& grad, std::string_view op, Function function) {
  with_stat_type(param.dtype, op, [&](auto zero) {
    if (grad.dtype == DType::kBF16) {
      function(zero, BFloat16{});
    } else {
      function(zero, zero);
    }
  });
}

}  // namespace

void finish_step(TensorView results, TensorView scalars, ConstTensorView totals, ConstTensorView squares,
                 const StepSettings& settings, Stream& stream) {
  constexpr std::string_view kOp = "finish_step";
  const int64_t num_squares = squares.num_elements();
  check_view(kOp, "results", results, DType::kF64, kNumStepResults);
  check_view(kOp, "scalars", scalars, DType::kF64, kNumUpdateScalars);
  check_view(kOp, "totals", totals, DType::kF64, 2);
  check_view(kOp, "squares", squares, DType::kF64, num_squares);
  DCHECK(settings.step >= 1, "{}: step {}, the first update is step 1", kOp, settings.step);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::finish_step(results.as<double>(), scalars.as<double>(), totals.as<double>(), squares.as<double>(),
                             num_squares, settings, gpu->handle());
  }
  launch(stream, kOp,
         [results = results.as<double>(), scalars = scalars.as<double>(), totals = totals.as<double>(),
          squares = squares.as<double>(), num_squares,
          settings] { cpu::finish_step(results, scalars, totals, squares, num_squares, settings); });
}

void adamw_step(TensorView param, TensorView first_moment, TensorView second_moment, ConstTensorView grad,
                TensorView copy, ConstTensorView scalars, double weight_decay, Stream& stream) {
  constexpr std::string_view kOp = "adamw_step";
  const int64_t n = param.num_elements();
  check_view(kOp, "param", param, param.dtype, n);
  check_view(kOp, "first_moment", first_moment, param.dtype, n);
  check_view(kOp, "second_moment", second_moment, param.dtype, n);
  check_gradient(kOp, grad, param);
  check_view(kOp, "scalars", scalars, DType::kF64, kNumUpdateScalars);
  check_copy(kOp, copy, n);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::adamw_step(param.as<float>(), first_moment.as<float>(), second_moment.as<float>(), grad.data,
                            gradient_element_of(kOp, grad.dtype), copy.data, copy_element(copy), n,
                            scalars.as<double>(), weight_decay, gpu->handle());
  }
  with_copy(copy, [&](auto* copy_data) {
    with_types(param, grad, kOp, [&]<typename T, typename Grad>(T, Grad) {
      launch(stream, kOp,
             [=, param = param.as<T>(), first = first_moment.as<T>(), second = second_moment.as<T>(),
              grad = grad.as<Grad>(), scalars = scalars.as<double>()] {
               cpu::adamw_step(param, first, second, grad, copy_data, n, scalars, weight_decay);
             });
    });
  });
}

void sgd_step(TensorView param, ConstTensorView grad, TensorView copy, ConstTensorView scalars, double weight_decay,
              Stream& stream) {
  constexpr std::string_view kOp = "sgd_step";
  const int64_t n = param.num_elements();
  check_view(kOp, "param", param, param.dtype, n);
  check_gradient(kOp, grad, param);
  check_view(kOp, "scalars", scalars, DType::kF64, kNumUpdateScalars);
  check_copy(kOp, copy, n);
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::sgd_step(param.as<float>(), grad.data, gradient_element_of(kOp, grad.dtype), copy.data,
                          copy_element(copy), n, scalars.as<double>(), weight_decay, gpu->handle());
  }
  with_copy(copy, [&](auto* copy_data) {
    with_types(param, grad, kOp, [&]<typename T, typename Grad>(T, Grad) {
      launch(stream, kOp, [=, param = param.as<T>(), grad = grad.as<Grad>(), scalars = scalars.as<double>()] {
        cpu::sgd_step(param, grad, copy_data, n, scalars, weight_decay);
      });
    });
  });
}

}  // namespace ashlar::kernels
