#include "kernels/optimizer.h"

#include "kernels/checks.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/dispatch.h"

namespace ashlar::kernels {

void adamw_step(TensorView param, TensorView first_moment, TensorView second_moment, ConstTensorView grad,
                const AdamWArgs& args, Stream& stream) {
  constexpr std::string_view kOp = "adamw_step";
  const int64_t n = param.num_elements();
  check_view(kOp, "param", param, param.dtype, n);
  check_view(kOp, "first_moment", first_moment, param.dtype, n);
  check_view(kOp, "second_moment", second_moment, param.dtype, n);
  check_view(kOp, "grad", grad, param.dtype, n);
  DCHECK(args.step >= 1, "{}: step {}, the first update is step 1", kOp, args.step);
  with_float_type(param.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp,
           [param_data = param.as<T>(), first_data = first_moment.as<T>(), second_data = second_moment.as<T>(),
            grad_data = grad.as<T>(), n,
            args] { cpu::adamw_step(param_data, first_data, second_data, grad_data, n, args); });
  });
}

void sgd_step(TensorView param, ConstTensorView grad, double rate, double weight_decay, double grad_scale,
              Stream& stream) {
  constexpr std::string_view kOp = "sgd_step";
  const int64_t n = param.num_elements();
  check_view(kOp, "param", param, param.dtype, n);
  check_view(kOp, "grad", grad, param.dtype, n);
  with_float_type(param.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    launch(stream, kOp, [param_data = param.as<T>(), grad_data = grad.as<T>(), n, rate, weight_decay, grad_scale] {
      cpu::sgd_step(param_data, grad_data, n, rate, weight_decay, grad_scale);
    });
  });
}

}  // namespace ashlar::kernels
