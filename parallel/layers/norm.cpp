#include "parallel/layers/norm.h"

#include "kernels/accumulate.h"
#include "kernels/layernorm.h"
#include "kernels/stat_dtype.h"

namespace ashlar {

LayerNorm::LayerNorm(const std::string& name, int64_t width, double epsilon, DType dtype, bool keeps_output)
    : width_(width), epsilon_(epsilon), dtype_(dtype), keeps_output_(keeps_output) {
  gamma.name = name + ".weight";
  gamma.shard = ShardSpec::replicated({width});
  gamma.init_mean = 1;
  beta.name = name + ".bias";
  beta.shard = ShardSpec::replicated({width});
  gamma.value.dtype = beta.value.dtype = dtype;
  gamma.grad.dtype = beta.grad.dtype = kernels::stat_dtype(dtype);
}

LayerNorm::Saved LayerNorm::saved_layout(Arena& arena, const BatchShape& shape) const {
  Saved saved;
  if (keeps_output_) {
    saved.out = take_tensor(arena, dtype_, shape.residual(width_));
  }
  saved.mean = take_tensor(arena, kernels::stat_dtype(dtype_), {shape.own_rows()});
  saved.rstd = take_tensor(arena, kernels::stat_dtype(dtype_), {shape.own_rows()});
  return saved;
}

LayerNorm::Pending LayerNorm::pending_layout(Arena& arena) const {
  Pending pending;
  pending.dgamma = take_tensor(arena, kernels::stat_dtype(dtype_), {width_});
  pending.dbeta = take_tensor(arena, kernels::stat_dtype(dtype_), {width_});
  return pending;
}

void LayerNorm::forward(LayerContext& context, const Saved& saved, ConstTensorView x) {
  const Shape rows{x.num_elements() / width_, width_};
  kernels::layernorm_forward(saved.out.reshaped(rows), saved.mean, saved.rstd, x.reshaped(rows), gamma.value,
                             beta.value, epsilon_, context.stream);
}

void LayerNorm::forward_of_sum(LayerContext& context, const Saved& saved, TensorView sum, ConstTensorView a,
                               ConstTensorView b, ConstTensorView bias) {
  const Shape rows{sum.num_elements() / width_, width_};
  kernels::residual_layernorm_forward(saved.out.reshaped(rows), sum.reshaped(rows), saved.mean, saved.rstd,
                                      a.reshaped(rows), b.reshaped(rows), bias, gamma.value, beta.value, epsilon_,
                                      context.stream);
}

void LayerNorm::backward_input(LayerContext& context, TensorView dx, const Pending& pending, ConstTensorView dy,
                               ConstTensorView dresidual, ConstTensorView x, const Saved& saved) {
  const Shape rows{x.num_elements() / width_, width_};
  kernels::layernorm_backward(dx.reshaped(rows), pending.dgamma, pending.dbeta, dy.reshaped(rows),
                              dresidual.data == nullptr ? dresidual : dresidual.reshaped(rows), x.reshaped(rows),
                              gamma.value, saved.mean, saved.rstd, context.stream);
}

void LayerNorm::backward_weight(LayerContext& context, const Pending& pending) {
  kernels::accumulate(gamma.grad, pending.dgamma, context.grad_write, context.stream);
  kernels::accumulate(beta.grad, pending.dbeta, context.grad_write, context.stream);
}

}  // namespace ashlar
