// Text from a trained model, token by token, on one rank.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/train/train_checkpoint.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {

struct SamplingOptions {
  double temperature = 1.0;  // 0: always the likeliest token
  int top_k = 0;             // 0: all tokens
  uint64_t seed = 1234;
};

class Generator {
 public:
  // Blocks the host. Loads the weights of a checkpoint that any grid wrote.
  Generator(RankContext& rank, const std::string& directory, int64_t iteration);

  const TrainOptions& options() const { return options_; }
  // Blocks the host. The token that follows `context` (at least one); the model sees its last max_positions tokens.
  // `position` numbers the draw, so that a seed always gives the same text.
  int32_t next(std::span<const int32_t> context, const SamplingOptions& sampling, uint64_t position);

 private:
  int32_t choose(std::span<const float> logits, const SamplingOptions& sampling, uint64_t position) const;

  TrainOptions options_;
  GptConfig config_;
  ProcessGrid grid_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<StageChunk> stage_;
  ParameterStore store_;
  HostCopy copy_;
  std::vector<std::byte> scratch_;
  Buffer activations_;
  Buffer workspace_;
};

}  // namespace ashlar
