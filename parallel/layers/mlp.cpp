#include "parallel/layers/mlp.h"

namespace ashlar {

Mlp::Mlp(const std::string& name, int64_t width, int64_t ffn, kernels::Activation activation, int tensor_rank,
         int tensor_size, double init_std, double output_init_std, DType dtype)
    : up(name + ".c_fc", {ffn, width}, tensor_rank, tensor_size, init_std, dtype),
      down(name + ".c_proj", width, ffn, tensor_rank, tensor_size, output_init_std, dtype),
      local_ffn_(ffn / tensor_size),
      activation_(activation),
      dtype_(dtype) {}

Mlp::Saved Mlp::saved_layout(Arena& arena, const BatchShape& shape) const {
  Saved saved;
  saved.pre = take_tensor(arena, dtype_, {shape.batch, shape.seq, local_ffn_});
  saved.act = take_tensor(arena, dtype_, {shape.batch, shape.seq, local_ffn_});
  return saved;
}

Mlp::Pending Mlp::pending_layout(Arena& arena, const BatchShape& shape) const {
  return {take_tensor(arena, dtype_, {shape.batch, shape.seq, local_ffn_})};
}

void Mlp::forward(LayerContext& context, TensorView y, ConstTensorView x, const Saved& saved) {
  up.forward(context, saved.act, saved.pre, x, activation_);
  down.forward(context, y, saved.act);
}

void Mlp::backward_input(LayerContext& context, TensorView dx, const Pending& pending, ConstTensorView dy,
                         const Saved& saved) {
  down.backward_input(context, pending.dpre, dy, saved.pre, activation_);
  up.backward_input(context, dx, pending.dpre);
}

void Mlp::backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x, const Pending& pending,
                          const Saved& saved) {
  down.backward_weight(context, dy, saved.act);
  up.backward_weight(context, pending.dpre, x);
}

}  // namespace ashlar
