#include "parallel/layers/block.h"

#include <algorithm>

#include "kernels/dropout.h"

namespace ashlar {
TransformerBlock::TransformerBlock(const std::string& name, const BlockConfig& config)
    : name_(name),
      config_(config),
      norm1_(name + ".ln_1", config.width, config.norm_epsilon, config.dtype, !config.recompute.layernorm),
      attention_(name + ".attn", config.width, config.num_heads, config.tensor_rank, config.tensor_size,
                 config.init_std, config.output_init_std, config.attention_dropout, config.dtype,
                 config.recompute.core_attn),
      norm2_(name + ".ln_2", config.width, config.norm_epsilon, config.dtype, !config.recompute.layernorm),
      mlp_(name + ".mlp", config.width, config.ffn, config.activation, config.tensor_rank, config.tensor_size,
           config.init_std, config.output_init_std, config.dtype, config.recompute.mlp_act),
      attention_dropout_(name + ".attn.output", config.hidden_dropout),
      mlp_dropout_(name + ".mlp.output", config.hidden_dropout) {}

std::vector<Parameter*> TransformerBlock::parameters() {
  return {&norm1_.gamma,
          &norm1_.beta,
          &attention_.query_key_value.weight,
          &attention_.query_key_value.bias,
          &attention_.output.weight,
          &attention_.output.bias,
          &norm2_.gamma,
          &norm2_.beta,
          &mlp_.up.weight,
          &mlp_.up.bias,
          &mlp_.down.weight,
          &mlp_.down.bias};
}

TransformerBlock::Saved TransformerBlock::saved_layout(Arena& arena, const BatchShape& shape) const {
  Saved saved;
  saved.norm1 = norm1_.saved_layout(arena, shape);
  saved.attention = attention_.saved_layout(arena, shape);
  saved.middle = take_tensor(arena, config_.dtype, shape.residual(config_.width));
  saved.norm2 = norm2_.saved_layout(arena, shape);
  saved.mlp = mlp_.saved_layout(arena, shape);
  return saved;
}

TransformerBlock::Pending TransformerBlock::pending_layout(Arena& arena, const BatchShape& shape) const {
  Pending pending;
  pending.norm1 = norm1_.pending_layout(arena);
  pending.attention = attention_.pending_layout(arena, shape);
  pending.dmiddle = take_tensor(arena, config_.dtype, shape.residual(config_.width));
  pending.norm2 = norm2_.pending_layout(arena);
  pending.mlp = mlp_.pending_layout(arena, shape);
  pending.dattention = attention_dropout_.backward_layout(arena, config_.dtype, shape, config_.width);
  pending.dmlp = mlp_dropout_.backward_layout(arena, config_.dtype, shape, config_.width);
  return pending;
}

LayerBytes TransformerBlock::bytes(const BatchShape& shape) const {
  Arena saved, pending, scratch;
  saved_layout(saved, shape);
  pending_layout(pending, shape);
  take_tensor(scratch, config_.dtype, shape.residual(config_.width));
  const size_t norm = config_.recompute.layernorm ? scratch.used() : 0;
  const size_t inner = std::max(attention_.forward_workspace_bytes(shape), mlp_.workspace_bytes(shape));
  return {saved.used(), pending.used(), std::max(scratch.used() + attention_.workspace_bytes(shape), norm + inner)};
}

void TransformerBlock::forward(LayerContext& context, TensorView y, ConstTensorView x, LayerMemory memory) {
  Saved saved = saved_layout(memory.saved, context.shape);
  const size_t mark = context.workspace.mark();
  if (config_.recompute.layernorm) {
    saved.norm1.out = saved.norm2.out = take_tensor(context.workspace, config_.dtype, x.shape);  // own rows
  }
  norm1_.forward(context, saved.norm1, x);
  attention_.forward(context, saved.middle, saved.norm1.out, saved.attention);

  if (attention_dropout_.drops(context)) {
    kernels::dropout_forward(saved.middle, saved.middle, attention_.output.bias.value, x,
                             attention_dropout_.mask(context), context.rows(), context.stream);
    norm2_.forward(context, saved.norm2, saved.middle);
  } else {
    norm2_.forward_of_sum(context, saved.norm2, saved.middle, saved.middle, x, attention_.output.bias.value);
  }
  mlp_.forward(context, y, saved.norm2.out, saved.mlp);
  context.workspace.reset_to(mark);
  if (y.data == nullptr) {
    return;
  }
  if (mlp_dropout_.drops(context)) {
    kernels::dropout_forward(y, y, mlp_.down.bias.value, saved.middle, mlp_dropout_.mask(context), context.rows(),
                             context.stream);
  } else {
    kernels::add_bias_residual(y, y, saved.middle, mlp_.down.bias.value, context.stream);
  }
}

void TransformerBlock::backward_input(LayerContext& context, TensorView dx, ConstTensorView dy, ConstTensorView x,
                                      LayerMemory memory) {
  const Saved saved = saved_layout(memory.saved, context.shape);
  const Pending pending = pending_layout(memory.pending, context.shape);
  const size_t mark = context.workspace.mark();
  const TensorView dnorm = take_tensor(context.workspace, config_.dtype, x.shape);  // own rows

  mlp_.backward_input(context, dnorm, pending.mlp, mlp_dropout_.backward(context, pending.dmlp, dy), saved.mlp);
  norm2_.backward_input(context, pending.dmiddle, pending.norm2, dnorm, dy, saved.middle, saved.norm2);

  attention_.backward_input(context, dnorm, pending.attention,
                            attention_dropout_.backward(context, pending.dattention, pending.dmiddle), saved.attention);
  norm1_.backward_input(context, dx, pending.norm1, dnorm, pending.dmiddle, x, saved.norm1);
  context.workspace.reset_to(mark);
}

void TransformerBlock::backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x,
                                       LayerMemory memory) {
  Saved saved = saved_layout(memory.saved, context.shape);
  const Pending pending = pending_layout(memory.pending, context.shape);
  const size_t mark = context.workspace.mark();
  if (config_.recompute.layernorm) {
    saved.norm1.out = saved.norm2.out = take_tensor(context.workspace, config_.dtype, x.shape);  // own rows
    norm2_.forward(context, saved.norm2, saved.middle);
  }
  mlp_.backward_weight(context, pending.dmlp.data != nullptr ? pending.dmlp : dy, saved.norm2.out, pending.mlp,
                       saved.mlp);
  norm2_.backward_weight(context, pending.norm2);
  if (config_.recompute.layernorm) {
    norm1_.forward(context, saved.norm1, x);
  }
  attention_.backward_weight(context, pending.dattention.data != nullptr ? pending.dattention : pending.dmiddle,
                             saved.norm1.out, pending.attention, saved.attention);
  norm1_.backward_weight(context, pending.norm1);
  context.workspace.reset_to(mark);
}

}  // namespace ashlar
