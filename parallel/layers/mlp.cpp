#include "parallel/layers/mlp.h"

#include <algorithm>

namespace ashlar {

Mlp::Mlp(const std::string& name, int64_t width, int64_t ffn, kernels::Activation activation, int tensor_rank,
         int tensor_size, double init_std, double output_init_std, DType dtype, bool recomputes_act)
    : up(name + ".c_fc", {ffn, width}, tensor_rank, tensor_size, init_std, dtype),
      down(name + ".c_proj", width, ffn, tensor_rank, tensor_size, output_init_std, dtype),
      local_ffn_(ffn / tensor_size),
      activation_(activation),
      dtype_(dtype),
      recomputes_act_(recomputes_act) {}

Mlp::Saved Mlp::saved_layout(Arena& arena, const BatchShape& shape) const {
  Saved saved;
  saved.pre = take_tensor(arena, dtype_, {shape.batch, shape.seq, local_ffn_});
  if (!recomputes_act_) {
    saved.act = take_tensor(arena, dtype_, {shape.batch, shape.seq, local_ffn_});
  }
  return saved;
}

Mlp::Pending Mlp::pending_layout(Arena& arena, const BatchShape& shape) const {
  return {take_tensor(arena, dtype_, {shape.batch, shape.seq, local_ffn_})};
}

TensorView Mlp::act_of(const Saved& saved, Arena& workspace, const BatchShape& shape) const {
  return recomputes_act_ ? take_tensor(workspace, dtype_, {shape.batch, shape.seq, local_ffn_}) : saved.act;
}

size_t Mlp::workspace_bytes(const BatchShape& shape) const {
  Arena counting;
  act_of({}, counting, shape);
  return counting.used() + std::max(up.workspace_bytes(shape), down.workspace_bytes(shape));
}

void Mlp::forward(LayerContext& context, TensorView y, ConstTensorView x, const Saved& saved) {
  const size_t mark = context.workspace.mark();
  const TensorView act = act_of(saved, context.workspace, context.shape);
  up.forward(context, act, saved.pre, x, activation_);
  if (y.data != nullptr) {
    down.forward(context, y, act);
  }
  context.workspace.reset_to(mark);
}

void Mlp::backward_input(LayerContext& context, TensorView dx, const Pending& pending, ConstTensorView dy,
                         const Saved& saved) {
  down.backward_input(context, pending.dpre, dy, saved.pre, activation_);
  up.backward_input(context, dx, pending.dpre);
}

void Mlp::backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x, const Pending& pending,
                          const Saved& saved) {
  const size_t mark = context.workspace.mark();
  const TensorView act = act_of(saved, context.workspace, context.shape);
  if (recomputes_act_) {
    kernels::activation_forward(act, saved.pre, activation_, context.stream);
  }
  down.backward_weight(context, dy, act);
  context.workspace.reset_to(mark);
  up.backward_weight(context, pending.dpre, x);
}

}  // namespace ashlar
