// Sample sources: one range of a token file, and made-up tokens.
#pragma once

#include <memory>
#include <string>

#include "runtime/data/batch.h"
#include "runtime/data/permutation.h"
#include "runtime/data/split.h"
#include "runtime/data/token_file.h"

namespace ashlar {

enum class DataOrder { kShuffle, kSequential };
DataOrder parse_data_order(const std::string& text);  // "shuffle" or "sequential"; throws Error(kUsage)

struct SampleOptions {
  int64_t seq_length = 0;  // s
  int64_t vocab_size = 0;  // ids must be below; without the padding of the embedding table
  int32_t eod_token = -1;
  bool eod_mask_loss = false;  // mask 0 where the input token is the document end (Megatron's rule), else all ones
  DataOrder order = DataOrder::kShuffle;
  uint64_t seed = 1234;
};

// A range of tokens cut into samples: sample k of the file order holds tokens [k*s, k*s + s] of the range, so that
// neighbours share one token and every token but the first is a target once. Document edges are not special. The tail
// that does not fill a sample, at most s - 1 tokens, is left out of every epoch. `shuffle` gives every epoch an order
// of its own.
class GptDataset : public SampleSource {
 public:
  // `what` names the source in messages and keeps its random order apart from others: "train", "valid 2". Throws
  // Error(kData) when the range is shorter than one sample.
  GptDataset(std::shared_ptr<const TokenFile> file, TokenRange range, std::string what, const SampleOptions& options);

  int64_t seq_length() const override { return options_.seq_length; }
  int64_t samples_per_epoch() const override { return samples_per_epoch_; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override;
  std::string description() const override;

 private:
  std::shared_ptr<const TokenFile> file_;
  TokenRange range_;
  std::string what_;
  SampleOptions options_;
  int64_t samples_per_epoch_;
  Permutation permutation_;
};

// --mock-data: tokens out of Philox, evenly distributed over the vocabulary.
class MockSource : public SampleSource {
 public:
  MockSource(const std::string& what, const SampleOptions& options);

  int64_t seq_length() const override { return options_.seq_length; }
  int64_t samples_per_epoch() const override {
    return int64_t{1} << 30;
  }  // samples never repeat; a number to plan with
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override;
  std::string description() const override;

 private:
  std::string what_;
  SampleOptions options_;
  PhiloxStream random_;
};

}  // namespace ashlar
