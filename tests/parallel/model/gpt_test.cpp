// Sizes of the model: parameters, floating-point operations, and which stage holds what.
#include "parallel/model/gpt.h"

#include <gtest/gtest.h>

#include <set>

namespace ashlar {
namespace {

// Model S of the outside cases.
GptConfig model_s() {
  return {.num_layers = 4,
          .width = 32,
          .num_heads = 4,
          .ffn = 128,
          .max_positions = 16,
          .vocab = 64,
          .padded_vocab = 64,
          .tied = true};
}

GptConfig gpt2() {
  return {.num_layers = 12,
          .width = 768,
          .num_heads = 12,
          .ffn = 3072,
          .max_positions = 1024,
          .vocab = 50257,
          .padded_vocab = 50304,
          .tied = true};
}

TEST(GptModel, CountsParameters) {
  GptConfig config = model_s();
  EXPECT_EQ(count_parameters(config), 53440);  // 4 * 12704 + 2048 + 512 + 64
  config.tied = false;
  EXPECT_EQ(count_parameters(config), 53440 + 2048);
  EXPECT_EQ(count_parameters(gpt2()), 124439808);  // the published number: padding does not count
}

// Exact integers, with the ffn width that was asked for and the true vocabulary.
TEST(GptModel, CountsFlops) {
  GptConfig config = model_s();
  EXPECT_EQ(flops_per_token(config, 16, FlopFormula::kFullAttention), 331776);
  EXPECT_EQ(128 * flops_per_token(config, 16, FlopFormula::kFullAttention), 42467328);
  EXPECT_EQ(flops_per_token(config, 16, FlopFormula::kCausal), 331776 - 12288);
  config.padded_vocab = 128;
  config.tied = false;
  EXPECT_EQ(flops_per_token(config, 16, FlopFormula::kFullAttention), 331776);  // neither changes the work
  config.ffn = 96;
  EXPECT_EQ(flops_per_token(config, 16, FlopFormula::kFullAttention), 282624);
}

TEST(GptModel, EveryParameterOnOneStageAndInEveryShard) {
  for (const bool tied : {true, false}) {
    GptConfig config = model_s();
    config.tied = tied;
    config.vocab = 61;
    std::set<std::string> names;
    int64_t elements = 0;
    for (const int tensor_size : {1, 2, 4}) {
      elements = 0;
      names.clear();
      for (int stage = 0; stage < 3; ++stage) {
        for (int tensor_rank = 0; tensor_rank < tensor_size; ++tensor_rank) {
          const auto chunk = make_stage(config, {1, 2, 1}, stage, tensor_rank, tensor_size);
          EXPECT_EQ(chunk->is_first(), stage == 0);
          EXPECT_EQ(chunk->is_last(), stage == 2);
          for (const Parameter* parameter : chunk->parameters()) {
            if (!parameter->tied_copy && (parameter->shard.is_split() || tensor_rank == 0)) {
              elements += parameter->shard.num_valid_elements();
              names.insert(parameter->name);
            }
          }
        }
      }
      EXPECT_EQ(elements, count_parameters(config)) << "tensor size " << tensor_size;
    }
    EXPECT_EQ(names.size(), global_parameters(config).size());
    EXPECT_EQ(names.count("lm_head.weight"), tied ? 0u : 1u);
    EXPECT_EQ(names.count("h.3.mlp.c_proj.bias"), 1u);
  }
}

TEST(GptModel, DecayAndInitialDeviations) {
  const auto chunk = make_stage(model_s(), {4}, 0, 0, 1);
  for (const Parameter* parameter : chunk->parameters()) {
    const bool is_matrix = parameter->shard.global.num_dims() >= 2 && parameter->name.ends_with("weight");
    EXPECT_EQ(parameter->decays, is_matrix) << parameter->name;
    const bool adds_to_residual = parameter->name.ends_with("c_proj.weight");
    const double expected = !is_matrix ? 0 : adds_to_residual ? 0.02 / std::sqrt(8.0) : 0.02;
    EXPECT_DOUBLE_EQ(parameter->init_std, expected) << parameter->name;
    EXPECT_DOUBLE_EQ(parameter->init_mean,
                     parameter->name.find("ln_") != std::string::npos && parameter->name.ends_with("weight") ? 1 : 0)
        << parameter->name;
  }
}

}  // namespace
}  // namespace ashlar
