#include "examples/pretrain_gpt/dry_run.h"

#include <iostream>

#include "parallel/train/training.h"

namespace ashlar {
namespace {

// What each pipeline stage holds, in words.
std::vector<std::string> stage_texts(const TrainOptions& options, const GptConfig& config) {
  const std::vector<int64_t> layers =
      split_layers(options.num_layers, options.pipeline_model_parallel_size, options.decoder_first_pipeline_num_layers,
                   options.decoder_last_pipeline_num_layers);
  std::vector<std::string> texts;
  int64_t first = 0;
  for (size_t stage = 0; stage < layers.size(); ++stage) {
    const auto chunk = make_stage(config, layers, static_cast<int>(stage), 0, options.tensor_model_parallel_size);
    int64_t elements = 0;
    for (const Parameter* parameter : chunk->parameters()) {
      elements += parameter->tied_copy && layers.size() == 1 ? 0 : parameter->shard.local().num_elements();
    }
    texts.push_back(fmt::format("{}layers {}..{}{}, {} parameters", stage == 0 ? "embedding, " : "", first,
                                first + layers[stage] - 1, stage + 1 == layers.size() ? ", head" : "", elements));
    first += layers[stage];
  }
  return texts;
}

}  // namespace

int dry_run(RankContext& rank, const TrainOptions& given) {
  const int world_size = given.world_size > 0 ? given.world_size : rank.world.size();
  TrainOptions options;
  agree(rank.world, [&] { options = resolve_options(given, world_size); });
  if (rank.world.rank() != 0) {
    return 0;
  }
  if (options.num_layers == 0) {
    std::cout << grid_map(grid_shape(options), rank_order(options), {});
    return 0;
  }
  const GptConfig config = gpt_config(options);
  const int64_t tokens = options.global_batch_size * options.seq_length;
  const int64_t causal = flops_per_token(config, options.seq_length, FlopFormula::kCausal);
  const int64_t full = flops_per_token(config, options.seq_length, FlopFormula::kFullAttention);
  std::cout << grid_map(grid_shape(options), rank_order(options), stage_texts(options, config));
  std::cout << fmt::format(
      "model: {} parameters, vocabulary {} padded to {}\n"
      "batch: {} samples = {} micro-batches of {} on each of {} data ranks; {} tokens a step, schedule {}\n"
      "FLOPs: {} per token, {} per step [{}]\n"
      "       {} per token, {} per step [{}]\n",
      count_parameters(config), config.vocab, config.padded_vocab, options.global_batch_size, options.num_microbatches,
      options.micro_batch_size, options.data_parallel_size, tokens, options.pipeline_schedule, causal, causal * tokens,
      flop_formula_name(FlopFormula::kCausal), full, full * tokens, flop_formula_name(FlopFormula::kFullAttention));
  return 0;
}

}  // namespace ashlar
