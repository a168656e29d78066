// One transformer block, pre-norm (GPT-2): x2 = x + attention(ln_1(x)); y = x2 + mlp(ln_2(x2)).
#pragma once

#include "parallel/layers/attention.h"
#include "parallel/layers/mlp.h"
#include "parallel/layers/norm.h"
#include "parallel/layers/recompute.h"

namespace ashlar {

struct BlockConfig {
  int64_t width = 0;
  int64_t num_heads = 0;
  int64_t ffn = 0;
  kernels::Activation activation = kernels::Activation::kGeluTanh;
  double norm_epsilon = 1e-5;
  double init_std = 0.02;
  double hidden_dropout = 0;     // of the outputs of attention and MLP
  double attention_dropout = 0;  // of attention probabilities
  SelectiveRecompute recompute{};
  double output_init_std = 0.02;  // of the two projections that add to the residual stream
  int tensor_rank = 0;
  int tensor_size = 1;
  DType dtype = DType::kF32;
};

class TransformerBlock final : public Layer {
 public:
  TransformerBlock(const std::string& name, const BlockConfig& config);

  const std::string& name() const override { return name_; }
  std::vector<Parameter*> parameters() override;
  LayerBytes bytes(const BatchShape& shape) const override;
  bool weight_pass_reads_values() const override { return config_.recompute.layernorm; }
  void forward(LayerContext& context, TensorView y, ConstTensorView x, LayerMemory memory) override;
  void backward_input(LayerContext& context, TensorView dx, ConstTensorView dy, ConstTensorView x,
                      LayerMemory memory) override;
  void backward_weight(LayerContext& context, ConstTensorView dy, ConstTensorView x, LayerMemory memory) override;

  // What forward keeps, in the memory it was given; public for whoever looks at a forward pass from outside.
  struct Saved {
    LayerNorm::Saved norm1;
    SelfAttention::Saved attention;
    TensorView middle;  // [B,T,C] or [1,B*T/t,C]: x2, the residual stream between the halves
    LayerNorm::Saved norm2;
    Mlp::Saved mlp;
  };
  Saved saved_layout(Arena& arena, const BatchShape& shape) const;

 private:
  struct Pending {
    LayerNorm::Pending norm1;
    SelfAttention::Pending attention;
    TensorView dmiddle;  // [B,T,C] or [1,B*T/t,C]: gradient of x2
    LayerNorm::Pending norm2;
    Mlp::Pending mlp;
    // [B,T,C] gradients of the outputs of attention and MLP, in front of dropout and of all rows; nothing where that
    // is what comes in (DropoutSite::backward_layout).
    TensorView dattention;
    TensorView dmlp;
  };
  Pending pending_layout(Arena& arena, const BatchShape& shape) const;

  std::string name_;
  BlockConfig config_;
  LayerNorm norm1_;
  SelfAttention attention_;
  LayerNorm norm2_;
  Mlp mlp_;
  DropoutSite attention_dropout_;  // of the attention's output
  DropoutSite mlp_dropout_;
};

}  // namespace ashlar
