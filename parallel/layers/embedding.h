// Tokens to the residual stream: a vocabulary-parallel table plus learned positions.
#pragma once

#include "parallel/layers/dropout_site.h"

namespace ashlar {

struct VocabularyConfig {
  int64_t vocab = 0;         // V, true size
  int64_t padded_vocab = 0;  // a multiple of the tensor size
  int64_t width = 0;
  int64_t max_positions = 0;
  double init_std = 0.02;
  double norm_epsilon = 1e-5;
  double hidden_dropout = 0;  // of the embedding's output
  bool tied = true;
  int tensor_rank = 0;
  int tensor_size = 1;
  DType dtype = DType::kF32;
};

class EmbeddingLayer final : public Layer {
 public:
  explicit EmbeddingLayer(const VocabularyConfig& config);

  const std::string& name() const override { return name_; }
  std::vector<Parameter*> parameters() override { return {&table_, &positions_}; }
  LayerBytes bytes(const BatchShape& shape) const override;
  bool input_pass_reads_values() const override { return false; }
  void forward(LayerContext& context, TensorView y, ConstTensorView x, LayerMemory memory) override;
  void backward_input(LayerContext&, TensorView, ConstTensorView, ConstTensorView, LayerMemory) override {}
  void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x, LayerMemory memory) override;

 private:
  std::string name_ = "embedding";
  Parameter table_;      // [V/t,C]
  Parameter positions_;  // [P,C]
  DropoutSite dropout_;
};

}  // namespace ashlar
