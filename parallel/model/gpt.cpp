#include "parallel/model/gpt.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/layers/embedding.h"
#include "parallel/layers/head.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

// Of the blocks of a stage, the first of which is layer `first`.
std::vector<RecomputeGroup> recompute_groups(const Recompute& recompute, int64_t first, int64_t num_blocks) {
  std::vector<RecomputeGroup> groups;
  const bool uniform = recompute.method == RecomputeMethod::kUniform;
  const int64_t size = uniform ? recompute.num_layers : 1;
  const int64_t end = uniform ? num_blocks : std::min(recompute.num_layers, num_blocks);
  for (int64_t at = 0; recompute.method != RecomputeMethod::kNone && at < end; at += size) {
    groups.push_back({static_cast<size_t>(first + at), static_cast<size_t>(first + std::min(at + size, end))});
  }
  return groups;
}

}  // namespace

std::unique_ptr<StageChunk> make_stage(const GptConfig& config, const std::vector<int64_t>& layers_per_stage, int stage,
                                       int tensor_rank, int tensor_size) {
  const int num_stages = static_cast<int>(layers_per_stage.size());
  const bool is_first = stage == 0;
  const bool is_last = stage == num_stages - 1;
  const VocabularyConfig vocabulary{.vocab = config.vocab,
                                    .padded_vocab = config.padded_vocab,
                                    .width = config.width,
                                    .max_positions = config.max_positions,
                                    .init_std = config.init_std,
                                    .norm_epsilon = config.norm_epsilon,
                                    .hidden_dropout = config.hidden_dropout,
                                    .tied = config.tied,
                                    .tensor_rank = tensor_rank,
                                    .tensor_size = tensor_size,
                                    .dtype = config.dtype};
  const BlockConfig block{.width = config.width,
                          .num_heads = config.num_heads,
                          .ffn = config.ffn,
                          .activation = config.activation,
                          .norm_epsilon = config.norm_epsilon,
                          .init_std = config.init_std,
                          .hidden_dropout = config.hidden_dropout,
                          .attention_dropout = config.attention_dropout,
                          .recompute = config.recompute.selective,
                          .output_init_std = config.init_std / std::sqrt(2.0 * static_cast<double>(config.num_layers)),
                          .tensor_rank = tensor_rank,
                          .tensor_size = tensor_size,
                          .dtype = config.dtype};

  std::vector<std::unique_ptr<Layer>> layers;
  if (is_first) {
    layers.push_back(std::make_unique<EmbeddingLayer>(vocabulary));
  }
  const int64_t first_block = std::accumulate(layers_per_stage.begin(), layers_per_stage.begin() + stage, int64_t{0});
  for (int64_t at = 0; at < layers_per_stage[static_cast<size_t>(stage)]; ++at) {
    layers.push_back(std::make_unique<TransformerBlock>(fmt::format("h.{}", first_block + at), block));
  }
  if (is_last) {
    layers.push_back(std::make_unique<LossHead>(vocabulary));
  }
  if (config.sequence_parallel && tensor_size > 1) {
    for (const auto& layer : layers) {
      for (Parameter* parameter : layer->parameters()) {
        // What is not split works on a rank's own rows: norms, biases behind a sum, positions.
        parameter->sum_over_tensor = !parameter->shard.is_split();
      }
    }
  }
  return std::make_unique<StageChunk>(
      stage, is_first, is_last, std::move(layers), config.width, config.dtype,
      recompute_groups(config.recompute, is_first ? 1 : 0, layers_per_stage[static_cast<size_t>(stage)]));
}

std::vector<GlobalParameter> global_parameters(const GptConfig& config) {
  const auto stage = make_stage(config, {config.num_layers}, 0, 0, 1);
  std::vector<GlobalParameter> all;
  for (const Parameter* parameter : stage->parameters()) {
    if (!parameter->tied_copy) {
      all.push_back({parameter->name, parameter->shard.global});
    }
  }
  return all;
}

int64_t count_parameters(const GptConfig& config) {
  int64_t count = 0;
  for (const GlobalParameter& parameter : global_parameters(config)) {
    count += parameter.shape.num_elements();
  }
  return count;
}

int64_t flops_per_token(const GptConfig& config, int64_t seq_length, FlopFormula formula) {
  const int64_t block_weights = 4 * config.width * config.width + 2 * config.width * config.ffn;
  const int64_t weights = config.num_layers * block_weights + config.vocab * config.width;
  const int64_t attention = config.num_layers * config.width * seq_length;
  return 6 * weights + (formula == FlopFormula::kCausal ? 6 : 12) * attention;
}

const char* flop_formula_name(FlopFormula formula) {
  return formula == FlopFormula::kCausal ? "6*(matrix weights + V*C) + 6*L*C*T per token (causal attention)"
                                         : "6*(matrix weights + V*C) + 12*L*C*T per token (full attention square)";
}

}  // namespace ashlar
