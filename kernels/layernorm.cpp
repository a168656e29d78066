#include "kernels/layernorm.h"

#include "kernels/activation.h"
#include "kernels/checks.h"
#include "kernels/cpu/layernorm.h"
#include "kernels/cuda/layernorm.h"
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
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::layernorm_forward(element_of(kOp, x.dtype), y.data, mean.as<float>(), rstd.as<float>(), x.data,
                                   gamma.data, beta.data, rows, columns, epsilon, gpu->handle());
  }
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
  constexpr std::string_view kOp = "residual_layernorm_forward";
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    const int64_t columns = a.shape[-1];
    const int64_t rows = columns == 0 ? 0 : a.num_elements() / columns;
    for (const ConstTensorView& matrix : {ConstTensorView(y), ConstTensorView(sum), a, b}) {
      check_view(kOp, "y, sum, a or b", matrix, a.dtype, rows * columns);
    }
    check_view(kOp, "gamma", gamma, a.dtype, columns);
    check_view(kOp, "beta", beta, a.dtype, columns);
    check_view(kOp, "bias", bias.data == nullptr ? gamma : bias, a.dtype, columns);
    check_view(kOp, "mean", mean, stat_dtype(a.dtype), rows);
    check_view(kOp, "rstd", rstd, stat_dtype(a.dtype), rows);
    return cuda::residual_layernorm_forward(element_of(kOp, a.dtype), y.data, sum.data, mean.as<float>(),
                                            rstd.as<float>(), a.data, b.data, bias.data, gamma.data, beta.data, rows,
                                            columns, epsilon, gpu->handle());
  }
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
  if (const GpuStream* gpu = gpu_of(stream, kOp)) {
    return cuda::layernorm_backward(element_of(kOp, x.dtype), dx.data, dgamma.as<float>(), dbeta.as<float>(), dy.data,
                                    dresidual.data, x.data, gamma.data, mean.as<float>(), rstd.as<float>(), rows,
                                    columns, gpu->scratch(kOp, cuda::layernorm_backward_scratch_bytes(rows, columns)),
                                    gpu->handle());
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
