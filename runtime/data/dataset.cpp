#include "runtime/data/dataset.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

void check_options(const SampleOptions& options) {
  REQUIRE(options.seq_length >= 1, ErrorCode::kUsage, "--seq-length: expected 1 or more, found {}", options.seq_length);
  REQUIRE(options.vocab_size >= 1 && options.vocab_size <= int64_t{1} << 31, ErrorCode::kUsage,
          "--vocab-size: expected 1 to 2147483648, found {}", options.vocab_size);
  REQUIRE(!options.eod_mask_loss || options.eod_token >= 0, ErrorCode::kUsage,
          "--eod-mask-loss needs a tokenizer with a document end token; give --tokenizer-type");
}

void check_spans(int64_t sample, int64_t seq_length, std::span<int32_t> tokens, std::span<int32_t> targets,
                 std::span<float> mask) {
  DCHECK(sample >= 0, "sample {}", sample);
  DCHECK(std::ssize(tokens) == seq_length && std::ssize(targets) == seq_length && std::ssize(mask) == seq_length,
         "spans of {}, {}, {} for sequence length {}", tokens.size(), targets.size(), mask.size(), seq_length);
}

void fill_mask(const SampleOptions& options, std::span<const int32_t> tokens, std::span<float> mask) {
  std::transform(tokens.begin(), tokens.end(), mask.begin(),
                 [&](int32_t token) { return options.eod_mask_loss && token == options.eod_token ? 0.0f : 1.0f; });
}

int64_t count_samples(const TokenFile& file, TokenRange range, const std::string& what, const SampleOptions& options) {
  check_options(options);
  REQUIRE(range.num_tokens() > options.seq_length, ErrorCode::kData,
          "{}: the {} split has {} tokens (of {}), but one sample needs {} (--seq-length {} + 1); give a shorter "
          "--seq-length, another --split or more data",
          file.path(), what, range.num_tokens(), file.num_tokens(), options.seq_length + 1, options.seq_length);
  return (range.num_tokens() - 1) / options.seq_length;
}

}  // namespace

DataOrder parse_data_order(const std::string& text) {
  REQUIRE(text == "shuffle" || text == "sequential", ErrorCode::kUsage,
          "--data-order {}: expected shuffle or sequential", text);
  return text == "shuffle" ? DataOrder::kShuffle : DataOrder::kSequential;
}

GptDataset::GptDataset(std::shared_ptr<const TokenFile> file, TokenRange range, std::string what,
                       const SampleOptions& options)
    : file_(std::move(file)),
      range_(range),
      what_(std::move(what)),
      options_(options),
      samples_per_epoch_(count_samples(*file_, range_, what_, options_)),
      permutation_(options_.seed, stream_of(what_), samples_per_epoch_) {}

void GptDataset::read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
                      std::span<float> mask) const {
  check_spans(sample, options_.seq_length, tokens, targets, mask);
  const int64_t epoch = sample / samples_per_epoch_;
  const int64_t place = sample % samples_per_epoch_;
  const int64_t k = options_.order == DataOrder::kShuffle ? permutation_.at(epoch, place) : place;
  const int64_t first = range_.begin + k * options_.seq_length;
  file_->read(first, tokens, options_.vocab_size);
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  file_->read(first + options_.seq_length, targets.last(1), options_.vocab_size);
  fill_mask(options_, tokens, mask);
}

std::string GptDataset::description() const {
  const int64_t used = samples_per_epoch_ * options_.seq_length + 1;
  return fmt::format(
      "{}: {} samples of {} tokens an epoch from tokens [{}, {}) of {} ({}; {}); {} tokens left over; {}", what_,
      samples_per_epoch_, options_.seq_length, range_.begin, range_.end, file_->path(), file_->description(),
      range_.rule, range_.num_tokens() - used,
      options_.order == DataOrder::kShuffle ? fmt::format("shuffled every epoch, seed {}", options_.seed)
                                            : std::string("in file order"));
}

MockSource::MockSource(const std::string& what, const SampleOptions& options)
    : what_(what), options_(options), random_(options.seed, RngPurpose::kSample, stream_of("mock data " + what)) {
  check_options(options_);
}

void MockSource::read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
                      std::span<float> mask) const {
  check_spans(sample, options_.seq_length, tokens, targets, mask);
  const auto first = static_cast<uint64_t>(sample) * static_cast<uint64_t>(options_.seq_length + 1);
  const auto token = [&](size_t i) {
    return static_cast<int32_t>(random_.below(first + i, static_cast<uint64_t>(options_.vocab_size)));
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = i == 0 ? token(0) : targets[i - 1];
    targets[i] = token(i + 1);
  }
  fill_mask(options_, tokens, mask);
}

std::string MockSource::description() const {
  return fmt::format("{}: mock data, random tokens below {}, seed {}", what_, options_.vocab_size, options_.seed);
}

}  // namespace ashlar
