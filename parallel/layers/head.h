// The end of the model: final norm, vocabulary-parallel logits, cross-entropy. Its output is the loss of each target.
#pragma once

#include "parallel/layers/embedding.h"
#include "parallel/layers/norm.h"

namespace ashlar {

class LossHead final : public Layer {
 public:
  explicit LossHead(const VocabularyConfig& config);

  const std::string& name() const override { return name_; }
  std::vector<Parameter*> parameters() override { return {&norm_.gamma, &norm_.beta, &table_}; }
  LayerBytes bytes(const BatchShape& shape) const override;
  bool has_output() const override { return false; }

  // Writes context.losses [B,T]: mask * -log softmax(logits)[target]. When training, the logits become their gradient.
  void forward(LayerContext& context, TensorView y, ConstTensorView x, LayerMemory memory) override;
  void backward_input(LayerContext& context, TensorView dx, ConstTensorView dy, ConstTensorView x,
                      LayerMemory memory) override;
  void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x, LayerMemory memory) override;

  // The logits [B*T,V/t] of the last forward pass with training off, in the memory it was given.
  TensorView logits(const BatchShape& shape, LayerMemory memory) const;

  // What forward keeps, in the memory it was given.
  struct Saved {
    LayerNorm::Saved norm;
    TensorView logits;  // [B*T,V/t]; in training its gradient
  };
  Saved saved_layout(Arena& arena, const BatchShape& shape) const;

 private:
  struct Workspace {
    TensorView all_stats;  // [t,B*T,3]
    TensorView stats;      // [B*T,3], this rank's part of all_stats
  };
  Workspace workspace_layout(Arena& arena, const BatchShape& shape) const;
  ConstTensorView gather_norm(LayerContext& context, const Saved& saved) const;  // [B*T,C], the norm's output

  std::string name_ = "head";
  VocabularyConfig config_;
  LayerNorm norm_;
  Parameter table_;  // [V/t,C]: wte.weight when tied, lm_head.weight otherwise
};

}  // namespace ashlar
