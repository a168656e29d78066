#include "kernels/layernorm.h"

#include "kernels/activation.h"
#include "kernels/checks.h"
#include "kernels/cpu/layernorm.h"
#include "kernels/dispatch.h"
#include "kernels/stat_dtype.h"

namespace ashlar::kernels {

void layernorm_forward(TensorView y, TensorView mean, TensorView rstd, ConstTensorView x, ConstTensorView gamma,
                       ConstTensorView beta, double epsilon, Stream& stream) {
  constexpr std::string_view kOp = "layernorm_forward";
  const int64_t columns = x.shape[-1];
  const int64_t rows = columns == 0 ? 0 : x.num_elements() / columns;
  check_view(kOp, "x", x, x.dtype, rows * columns);
  check_view(kOp, "y", y, x.dtype, rows * columns);
  check_view(kOp, "mean", mean, stat_dtype(x.dtype), rows);
  check_view(kOp, "rstd", rstd, stat_dtype(x.dtype), rows);
  check_view(kOp, "gamma", gamma, x.dtype, columns);
  check_view(kOp, "beta", beta, x.dtype, columns);
  with_compute_type(x.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    using S = cpu::Compute<T>;
    launch(stream, kOp,
           [y_data = y.as<T>(), mean_data = mean.as<S>(), rstd_data = rstd.as<S>(), x_data = x.as<T>(),
            gamma_data = gamma.as<T>(), beta_data = beta.as<T>(), rows, columns, epsilon] {
             cpu::layernorm_forward(y_data, mean_data, rstd_data, x_data, gamma_data, beta_data, rows, columns,
                                    epsilon);
           });
  });
}

void residual_layernorm_forward(TensorView y, TensorView sum, TensorView mean, TensorView rstd, ConstTensorView a,
                                ConstTensorView b, ConstTensorView bias, ConstTensorView gamma, ConstTensorView beta,
                                double epsilon, Stream& stream) {
  add_bias_residual(sum, a, b, bias, stream);
  layernorm_forward(y, mean, rstd, sum, gamma, beta, epsilon, stream);
}

void layernorm_backward(TensorView dx, TensorView dgamma, TensorView dbeta, ConstTensorView dy,
                        ConstTensorView dresidual, ConstTensorView x, ConstTensorView gamma, ConstTensorView mean,
                        ConstTensorView rstd, Stream& stream) {
  constexpr std::string_view kOp = "layernorm_backward";
  const int64_t columns = x.shape[-1];
  const int64_t rows = columns == 0 ? 0 : x.num_elements() / columns;
  check_view(kOp, "x", x, x.dtype, rows * columns);
  check_view(kOp, "dx", dx, x.dtype, rows * columns);
  check_view(kOp, "dy", dy, x.dtype, rows * columns);
  check_view(kOp, "dgamma", dgamma, stat_dtype(x.dtype), columns);
  check_view(kOp, "dbeta", dbeta, stat_dtype(x.dtype), columns);
  check_view(kOp, "gamma", gamma, x.dtype, columns);
  check_view(kOp, "mean", mean, stat_dtype(x.dtype), rows);
  check_view(kOp, "rstd", rstd, stat_dtype(x.dtype), rows);
  if (dresidual.data != nullptr) {
    check_view(kOp, "dresidual", dresidual, x.dtype, rows * columns);
  }
  with_compute_type(x.dtype, kOp, [&](auto zero) {
    using T = decltype(zero);
    using S = cpu::Compute<T>;
    launch(stream, kOp,
           [dx_data = dx.as<T>(), dgamma_data = dgamma.as<S>(), dbeta_data = dbeta.as<S>(), dy_data = dy.as<T>(),
            dresidual_data = dresidual.data == nullptr ? nullptr : dresidual.as<T>(), x_data = x.as<T>(),
            gamma_data = gamma.as<T>(), mean_data = mean.as<S>(), rstd_data = rstd.as<S>(), rows, columns] {
             cpu::layernorm_backward(dx_data, dgamma_data, dbeta_data, dy_data, dresidual_data, x_data, gamma_data,
                                     mean_data, rstd_data, rows, columns);
           });
  });
}

}  // namespace ashlar::kernels
