// GPT (decoder-only, pre-norm, learned positions): from sizes and a grid coordinate to this rank's stage chunks.
#pragma once

#include <memory>
#include <vector>

#include "parallel/grid/process_grid.h"
#include "parallel/layers/block.h"
#include "parallel/pipeline/stage_chunk.h"

namespace ashlar {

struct GptConfig {
  int64_t num_layers = 0;     // L
  int64_t width = 0;          // C
  int64_t num_heads = 0;      // H
  int64_t ffn = 0;            // F
  int64_t max_positions = 0;  // P
  int64_t vocab = 0;          // V
  int64_t padded_vocab = 0;
  bool tied = true;
  kernels::Activation activation = kernels::Activation::kGeluTanh;
  double norm_epsilon = 1e-5;
  double init_std = 0.02;
  double hidden_dropout = 0;
  double attention_dropout = 0;
  Recompute recompute{};
  bool sequence_parallel = false;  // batches must split their rows among the tensor ranks, see BatchShape
  DType dtype = DType::kF32;
};

// The layers of one pipeline stage of one tensor rank. `layers_per_stage` has one number of blocks per stage.
std::unique_ptr<StageChunk> make_stage(const GptConfig& config, const std::vector<int64_t>& layers_per_stage, int stage,
                                       int tensor_rank, int tensor_size);

// Every distinct parameter with its global shape, in model order. Pure: used for counting and for checkpoints.
struct GlobalParameter {
  std::string name;
  Shape shape;
};
std::vector<GlobalParameter> global_parameters(const GptConfig& config);
int64_t count_parameters(const GptConfig& config);

// Floating-point operations of forward and backward per token: 6 per weight of every matrix product (blocks and logits,
// true vocabulary; the embedding lookup counts nothing) plus attention scores and values, 12 L C T when the whole T x T
// square is counted and half of it when only the causal half is. Formula: Narayanan et al., arXiv:2104.04473, appendix,
// without recomputation. Recomputation never changes it.
enum class FlopFormula { kCausal, kFullAttention };
int64_t flops_per_token(const GptConfig& config, int64_t seq_length, FlopFormula formula);
const char* flop_formula_name(FlopFormula formula);

}  // namespace ashlar
