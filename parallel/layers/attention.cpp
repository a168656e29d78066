#include "parallel/layers/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/stat_dtype.h"

namespace ashlar {

SelfAttention::SelfAttention(const std::string& name, int64_t width, int64_t num_heads, int tensor_rank,
                             int tensor_size, double init_std, double output_init_std, double dropout, DType dtype,
                             bool recomputes_core)
    : query_key_value(name + ".c_attn", {3, width, width}, tensor_rank, tensor_size, init_std, dtype),
      output(name + ".c_proj", width, width, tensor_rank, tensor_size, output_init_std, dtype),
      dropout_(name, dropout),
      first_head_(num_heads / tensor_size * tensor_rank),
      local_heads_(num_heads / tensor_size),
      head_dim_(width / num_heads),
      scale_(1.0 / std::sqrt(static_cast<double>(head_dim_))),
      dtype_(dtype),
      recomputes_core_(recomputes_core) {}

template <typename Results>
void SelfAttention::results_layout(Results& results, Arena& arena, const BatchShape& shape) const {
  results.out = take_tensor(arena, dtype_, {shape.batch, shape.seq, local_heads_, head_dim_});
  results.lse = take_tensor(arena, kernels::stat_dtype(dtype_), {shape.batch, local_heads_, shape.seq});
}

SelfAttention::Saved SelfAttention::saved_layout(Arena& arena, const BatchShape& shape) const {
  Saved saved;
  saved.qkv = take_tensor(arena, dtype_, {shape.batch, shape.seq, 3, local_heads_, head_dim_});
  if (!recomputes_core_) {
    results_layout(saved, arena, shape);
  }
  return saved;
}

SelfAttention::Pending SelfAttention::pending_layout(Arena& arena, const BatchShape& shape) const {
  Pending pending;
  pending.dqkv = take_tensor(arena, dtype_, {shape.batch, shape.seq, 3, local_heads_, head_dim_});
  if (recomputes_core_) {
    results_layout(pending, arena, shape);
  }
  return pending;
}

SelfAttention::Workspace SelfAttention::workspace_layout(Arena& arena, const BatchShape& shape) const {
  const Shape qkv{shape.batch, shape.seq, 3, local_heads_, head_dim_};
  Workspace workspace;
  workspace.dout = take_tensor(arena, dtype_, {shape.batch, shape.seq, local_heads_, head_dim_});
  workspace.attention =
      take_tensor(arena, DType::kU8, {static_cast<int64_t>(kernels::attention_backward_workspace_bytes(qkv, dtype_))});
  return workspace;
}

size_t SelfAttention::workspace_bytes(const BatchShape& shape) const {
  Arena counting;
  workspace_layout(counting, shape);
  return std::max(counting.used(), query_key_value.workspace_bytes(shape));
}

size_t SelfAttention::forward_workspace_bytes(const BatchShape& shape) const {
  Arena counting;
  if (recomputes_core_) {
    Saved results;
    results_layout(results, counting, shape);
  }
  return counting.used() + std::max(query_key_value.workspace_bytes(shape), output.workspace_bytes(shape));
}

void SelfAttention::forward(LayerContext& context, TensorView y, ConstTensorView x, const Saved& saved) {
  const size_t mark = context.workspace.mark();
  Saved results = saved;
  if (recomputes_core_) {
    results_layout(results, context.workspace, context.shape);
  }
  query_key_value.forward(context, saved.qkv, x);
  kernels::attention_forward(results.out, results.lse, saved.qkv, scale_, dropout_.mask(context, first_head_),
                             context.stream);
  output.forward(context, y, results.out);
  context.workspace.reset_to(mark);
}

void SelfAttention::backward_input(LayerContext& context, TensorView dx, const Pending& pending, ConstTensorView dy,
                                   const Saved& saved) {
  const size_t mark = context.workspace.mark();
  const Workspace workspace = workspace_layout(context.workspace, context.shape);
  output.backward_input(context, workspace.dout, dy);
  if (recomputes_core_) {
    kernels::attention_forward(pending.out, pending.lse, saved.qkv, scale_, dropout_.mask(context, first_head_),
                               context.stream);
  }
  const TensorView out = recomputes_core_ ? pending.out : saved.out;
  const TensorView lse = recomputes_core_ ? pending.lse : saved.lse;
  kernels::attention_backward(pending.dqkv, workspace.dout, saved.qkv, out, lse, scale_,
                              dropout_.mask(context, first_head_), workspace.attention, context.stream);
  context.workspace.reset_to(mark);
  query_key_value.backward_input(context, dx, pending.dqkv);
}

void SelfAttention::backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x,
                                    const Pending& pending, const Saved& saved) {
  output.backward_weight(context, dy, recomputes_core_ ? pending.out : saved.out);
  query_key_value.backward_weight(context, pending.dqkv, x);
}

}  // namespace ashlar
