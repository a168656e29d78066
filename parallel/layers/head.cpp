#include "parallel/layers/head.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/stat_dtype.h"

namespace ashlar {

LossHead::LossHead(const VocabularyConfig& config)
    : config_(config), norm_("ln_f", config.width, config.norm_epsilon, config.dtype) {
  table_.name = config.tied ? "wte.weight" : "lm_head.weight";
  table_.tied_copy = config.tied;
  table_.shard =
      ShardSpec::split({config.vocab, config.width}, 0, config.tensor_rank, config.tensor_size, config.padded_vocab);
  table_.init_std = config.init_std;
  table_.decays = true;
  table_.value.dtype = config.dtype;
  table_.grad.dtype = kernels::stat_dtype(config.dtype);
}

LossHead::Saved LossHead::saved_layout(Arena& arena, const BatchShape& shape) const {
  Saved saved;
  saved.norm = norm_.saved_layout(arena, shape);
  saved.logits = take_tensor(arena, config_.dtype, {shape.all_rows(), table_.shard.local()[0]});
  return saved;
}

LossHead::Workspace LossHead::workspace_layout(Arena& arena, const BatchShape& shape) const {
  const int64_t rows = shape.all_rows();
  Workspace workspace;
  workspace.all_stats = take_tensor(arena, kernels::stat_dtype(config_.dtype), {config_.tensor_size, rows, 3});
  workspace.stats = workspace.all_stats.slice(config_.tensor_rank, config_.tensor_rank + 1).reshaped({rows, 3});
  return workspace;
}

LayerBytes LossHead::bytes(const BatchShape& shape) const {
  Arena saved, pending, forward_scratch, backward_scratch;
  saved_layout(saved, shape);
  norm_.pending_layout(pending);
  workspace_layout(forward_scratch, shape);
  take_tensor(backward_scratch, config_.dtype, {shape.batch, shape.seq, config_.width});
  return {saved.used(), pending.used(), std::max(forward_scratch.used(), backward_scratch.used())};
}

void LossHead::forward(LayerContext& context, TensorView, ConstTensorView x, LayerMemory memory) {
  const Saved saved = saved_layout(memory.saved, context.shape);
  const size_t mark = context.workspace.mark();
  const int64_t rows = context.shape.all_rows();
  const TensorView targets = context.batch.targets.reshaped({rows});
  const int64_t begin = table_.shard.begin();
  const int64_t num_valid = table_.shard.num_valid();

  norm_.forward(context, saved.norm, x);
  kernels::linear_forward(saved.logits, gather_norm(context, saved), table_.value, ConstTensorView{}, context.stream);
  context.workspace.reset_to(mark);
  const Workspace workspace = workspace_layout(context.workspace, context.shape);
  kernels::cross_entropy_stats(workspace.stats, saved.logits, targets, begin, num_valid, context.stream);
  context.tensor.all_gather(workspace.all_stats, workspace.stats, context.stream).wait(context.stream);
  kernels::cross_entropy_finish(context.losses.reshaped({rows}), saved.logits, workspace.all_stats, targets,
                                context.batch.mask.reshaped({rows}), begin, num_valid, context.grad_scale,
                                context.training, context.stream);
  context.workspace.reset_to(mark);
}

void LossHead::backward_input(LayerContext& context, TensorView dx, ConstTensorView, ConstTensorView x,
                              LayerMemory memory) {
  const Saved saved = saved_layout(memory.saved, context.shape);
  const LayerNorm::Pending pending = norm_.pending_layout(memory.pending);
  const size_t mark = context.workspace.mark();
  const int64_t rows = context.shape.all_rows();
  const TensorView partial = take_tensor(context.workspace, config_.dtype, {rows, config_.width});
  const TensorView dnorm = own_rows(context, partial);  // [B,T,C] or [1,B*T/t,C]

  kernels::linear_backward_input(partial, saved.logits, table_.value, context.stream);
  sum_rows(context, dnorm, partial);
  norm_.backward_input(context, dx, pending, dnorm, ConstTensorView{}, x, saved.norm);
  context.workspace.reset_to(mark);
}

void LossHead::backward_weight(LayerContext& context, ConstTensorView, ConstTensorView, LayerMemory memory) {
  const Saved saved = saved_layout(memory.saved, context.shape);
  const size_t mark = context.workspace.mark();
  kernels::linear_backward_weight(table_.grad, saved.logits, gather_norm(context, saved), context.grad_write,
                                  context.stream);
  context.workspace.reset_to(mark);
  norm_.backward_weight(context, norm_.pending_layout(memory.pending));
}

ConstTensorView LossHead::gather_norm(LayerContext& context, const Saved& saved) const {
  const TensorView all = take_all_rows(context.workspace, config_.dtype, context.shape, config_.width);
  return gather_rows(context, all, saved.norm.out).reshaped({context.shape.all_rows(), config_.width});
}

TensorView LossHead::logits(const BatchShape& shape, LayerMemory memory) const {
  return saved_layout(memory.saved, shape).logits;
}

}  // namespace ashlar
