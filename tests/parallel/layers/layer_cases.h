// The layers under test, with small odd sizes: width 6, 2 heads, ffn 10, 7 ids.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "parallel/layers/block.h"
#include "parallel/layers/embedding.h"
#include "parallel/layers/head.h"
#include "tests/parallel/layers/layer_harness.h"

namespace ashlar::test {

inline constexpr int64_t kWidth = 6;
inline constexpr int64_t kVocab = 7;

// A column-parallel layer followed by a row-parallel one and its bias, without anything between them.
class LinearPair final : public Layer {
 public:
  LinearPair(int tensor_rank, int tensor_size, DType dtype)
      : column_("column", {10, kWidth}, tensor_rank, tensor_size, 0.1, dtype),
        row_("row", kWidth, 10, tensor_rank, tensor_size, 0.1, dtype),
        local_(10 / tensor_size),
        dtype_(dtype) {}
  const std::string& name() const override { return name_; }
  std::vector<Parameter*> parameters() override { return {&column_.weight, &column_.bias, &row_.weight, &row_.bias}; }
  LayerBytes bytes(const BatchShape& shape) const override {
    Arena saved, pending;
    middle(saved, shape);
    column_input(saved, shape);
    middle(pending, shape);
    take_all_rows(pending, dtype_, shape, kWidth);
    return {saved.used(), pending.used(), std::max(column_.workspace_bytes(shape), row_.workspace_bytes(shape))};
  }
  void forward(LayerContext& context, TensorView y, ConstTensorView x, LayerMemory memory) override {
    const TensorView hidden = middle(memory.saved, context.shape);
    const TensorView kept = column_input(memory.saved, context.shape);
    context.stream.copy(kept.data, x.data, x.bytes());
    column_.forward(context, hidden, x);
    row_.forward(context, y, hidden);
    kernels::add_bias_residual(y, y, zero(context), row_.bias.value, context.stream);
  }
  void backward_input(LayerContext& context, TensorView dx, ConstTensorView dy, ConstTensorView,
                      LayerMemory memory) override {
    const TensorView dhidden = middle(memory.pending, context.shape);
    const TensorView all = take_all_rows(memory.pending, dtype_, context.shape, kWidth);
    row_.backward_input(context, dhidden, gather_rows(context, all, dy));
    column_.backward_input(context, dx, dhidden);
  }
  void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView, LayerMemory memory) override {
    const TensorView hidden = middle(memory.saved, context.shape);
    const TensorView kept = column_input(memory.saved, context.shape);
    const TensorView dhidden = middle(memory.pending, context.shape);
    const TensorView all = take_all_rows(memory.pending, dtype_, context.shape, kWidth);
    row_.backward_weight(context, all.data != nullptr ? all : dy, hidden);
    column_.backward_weight(context, dhidden, kept);
  }

 private:
  TensorView middle(Arena& arena, const BatchShape& shape) const {
    return take_tensor(arena, dtype_, {shape.batch, shape.seq, local_});
  }
  TensorView column_input(Arena& arena, const BatchShape& shape) const {
    return take_tensor(arena, dtype_, shape.residual(kWidth));
  }
  ConstTensorView zero(LayerContext& context) {
    const Shape shape = context.shape.residual(kWidth);
    zeros_.assign(static_cast<size_t>(shape.num_elements()), 0.0);
    zeros32_.assign(zeros_.size(), 0.0f);
    return dtype_ == DType::kF64 ? ConstTensorView(view_of(zeros_.data(), shape))
                                 : ConstTensorView(view_of(zeros32_.data(), shape));
  }

  std::string name_ = "pair";
  ColumnParallelLinear column_;
  RowParallelLinear row_;
  int64_t local_;
  DType dtype_;
  std::vector<double> zeros_;
  std::vector<float> zeros32_;
};

struct LayerCase {
  std::string name;
  LayerMaker make;
};
inline void PrintTo(const LayerCase& c, std::ostream* out) {
  *out << c.name;
}

inline std::unique_ptr<Layer> make_block(int tensor_rank, int tensor_size, DType dtype, kernels::Activation activation,
                                         double dropout = 0, SelectiveRecompute recompute = {}) {
  return std::make_unique<TransformerBlock>("h.0", BlockConfig{.width = kWidth,
                                                               .num_heads = 2,
                                                               .ffn = 10,
                                                               .activation = activation,
                                                               .hidden_dropout = dropout,
                                                               .attention_dropout = dropout,
                                                               .recompute = recompute,
                                                               .tensor_rank = tensor_rank,
                                                               .tensor_size = tensor_size,
                                                               .dtype = dtype});
}

inline VocabularyConfig vocabulary(int tensor_rank, int tensor_size, DType dtype, bool tied, double dropout = 0) {
  return {.vocab = kVocab,
          .padded_vocab = 12,  // on two ranks the second has one valid row of six
          .width = kWidth,
          .max_positions = 5,  // more than the sequence
          .hidden_dropout = dropout,
          .tied = tied,
          .tensor_rank = tensor_rank,
          .tensor_size = tensor_size,
          .dtype = dtype};
}

inline std::vector<LayerCase> layer_cases() {
  using kernels::Activation;
  return {
      {"block_tanh", [](int r, int t, DType d) { return make_block(r, t, d, Activation::kGeluTanh); }},
      {"block_erf", [](int r, int t, DType d) { return make_block(r, t, d, Activation::kGeluErf); }},
      {"block_dropout", [](int r, int t, DType d) { return make_block(r, t, d, Activation::kGeluTanh, 0.3); }},
      {"block_recomputed",
       [](int r, int t, DType d) {
         return make_block(r, t, d, Activation::kGeluTanh, 0, {.layernorm = true, .mlp_act = true});
       }},
      {"block_recomputed_core",
       [](int r, int t, DType d) {
         return make_block(r, t, d, Activation::kGeluTanh, 0.3,
                           {.core_attn = true, .layernorm = true, .mlp_act = true});
       }},
      {"embedding_dropout",
       [](int r, int t, DType d) { return std::make_unique<EmbeddingLayer>(vocabulary(r, t, d, true, 0.3)); }},
      {"embedding", [](int r, int t, DType d) { return std::make_unique<EmbeddingLayer>(vocabulary(r, t, d, true)); }},
      {"head_tied", [](int r, int t, DType d) { return std::make_unique<LossHead>(vocabulary(r, t, d, true)); }},
      {"head_untied", [](int r, int t, DType d) { return std::make_unique<LossHead>(vocabulary(r, t, d, false)); }},
      {"linear_pair", [](int r, int t, DType d) { return std::make_unique<LinearPair>(r, t, d); }},
  };
}

}  // namespace ashlar::test
