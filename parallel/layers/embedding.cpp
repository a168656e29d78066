#include "parallel/layers/embedding.h"

#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/stat_dtype.h"

namespace ashlar {

EmbeddingLayer::EmbeddingLayer(const VocabularyConfig& config) : dropout_("embedding", config.hidden_dropout) {
  table_.name = "wte.weight";
  table_.shard =
      ShardSpec::split({config.vocab, config.width}, 0, config.tensor_rank, config.tensor_size, config.padded_vocab);
  table_.tied_first = config.tied;
  positions_.name = "wpe.weight";
  positions_.shard = ShardSpec::replicated({config.max_positions, config.width});
  for (Parameter* parameter : parameters()) {
    parameter->init_std = config.init_std;
    parameter->decays = true;
    parameter->value.dtype = config.dtype;
    parameter->grad.dtype = kernels::stat_dtype(config.dtype);
  }
}

LayerBytes EmbeddingLayer::bytes(const BatchShape& shape) const {
  Arena scratch;
  dropout_.backward_layout(scratch, positions_.value.dtype, shape, positions_.shard.global[1]);  // at least forward's
  return {0, 0, scratch.used()};
}

void EmbeddingLayer::forward(LayerContext& context, TensorView y, ConstTensorView, LayerMemory) {
  const int64_t rows = context.shape.all_rows();
  const size_t mark = context.workspace.mark();
  const TensorView partial = take_partial(context.workspace, context.shape, y);  // [B,T,C]
  kernels::embedding_forward(partial.reshaped({rows, y.shape[-1]}), context.batch.tokens.reshaped({rows}), table_.value,
                             table_.shard.begin(), table_.shard.num_valid(), context.stream);
  sum_rows(context, y, partial);
  context.workspace.reset_to(mark);
  kernels::position_forward(y, positions_.value, context.rows(), context.stream);
  if (dropout_.drops(context)) {
    kernels::dropout_forward(y, y, {}, {}, dropout_.mask(context), context.rows(), context.stream);
  }
}

void EmbeddingLayer::backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView, LayerMemory) {
  const int64_t rows = context.shape.all_rows();
  const size_t mark = context.workspace.mark();
  const TensorView scratch = dropout_.backward_layout(context.workspace, dy.dtype, context.shape, dy.shape[-1]);
  dy = dropout_.backward(context, scratch, dy);  // [B,T,C]
  if (context.grad_write == kernels::Write::kOverwrite) {
    context.stream.fill_zero(table_.grad.data, table_.grad.bytes());  // the kernel touches only the rows it meets
  }
  kernels::embedding_backward(table_.grad, dy.reshaped({rows, dy.shape[-1]}), context.batch.tokens.reshaped({rows}),
                              context.batch.order, table_.shard.begin(), table_.shard.num_valid(), context.stream);
  kernels::position_backward(positions_.grad, own_rows(context, dy), context.rows(), context.grad_write,
                             context.stream);
  context.workspace.reset_to(mark);
}

}  // namespace ashlar
