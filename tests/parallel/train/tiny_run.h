// A model small enough to train on every grid within a unit test, and a data source that needs no file.
#pragma once

#include <algorithm>

#include "parallel/train/training.h"
#include "runtime/data/dataset.h"

namespace ashlar::test {

// Eight layers and eight heads, so that every grid of up to eight ranks exists; an odd vocabulary, so that it is
// padded.
inline TrainOptions tiny_options() {
  TrainOptions options;
  options.num_layers = 8;
  options.hidden_size = 32;
  options.num_attention_heads = 8;
  options.seq_length = 16;
  options.tokenizer_type = "NullTokenizer";
  options.vocab_size = 67;
  options.make_vocab_size_divisible_by = 8;
  options.micro_batch_size = 1;
  options.global_batch_size = 8;
  options.train_iters = 20;
  options.lr = 1e-3;
  options.lr_decay_style = "constant";
  options.mock_data = true;
  return options;
}

inline TrainOptions with_grid(TrainOptions options, const GridShape& grid) {
  options.tensor_model_parallel_size = grid.tensor;
  options.pipeline_model_parallel_size = grid.pipeline;
  return resolve_options(options, grid.num_ranks());
}

// Tokens of a stride pattern with noise: learnable, so that weights really move.
class TinySource final : public SampleSource {
 public:
  TinySource(int64_t seq_length, int64_t vocab) : seq_length_(seq_length), vocab_(vocab) {}
  int64_t seq_length() const override { return seq_length_; }
  int64_t samples_per_epoch() const override { return 1 << 20; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override {
    const PhiloxStream random(7, RngPurpose::kTest, 1);
    const auto token = [&](int64_t at) {
      const uint64_t key = static_cast<uint64_t>(sample * (seq_length_ + 1) + at);
      return random.uniform(4 * key) < 0.25 ? static_cast<int32_t>(random.below(key, static_cast<uint64_t>(vocab_)))
                                            : static_cast<int32_t>((sample * 5 + at * 3) % vocab_);
    };
    for (int64_t at = 0; at < seq_length_; ++at) {
      tokens[static_cast<size_t>(at)] = token(at);
      targets[static_cast<size_t>(at)] = token(at + 1);
    }
    std::fill(mask.begin(), mask.end(), 1.0f);
  }
  std::string description() const override { return "tiny"; }

 private:
  int64_t seq_length_;
  int64_t vocab_;
};

}  // namespace ashlar::test
