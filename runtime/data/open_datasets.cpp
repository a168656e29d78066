#include "runtime/data/open_datasets.h"

#include <array>
#include <bit>
#include <charconv>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/data/blend.h"
#include "runtime/data/fingerprint.h"
#include "runtime/data/split.h"

namespace ashlar {
namespace {

std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = status == std::errc() && stop == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

struct OpenFiles {
  std::vector<std::shared_ptr<const TokenFile>> files;
  std::vector<double> weights;
};

OpenFiles open_files(const std::vector<std::string>& entries) {
  const WeightedPaths parsed = parse_data_path(entries);
  OpenFiles open;
  open.weights = parsed.weights;
  for (const std::string& path : parsed.paths) {
    open.files.push_back(open_token_file(path));
  }
  return open;
}

uint64_t hash_files(uint64_t hash, const OpenFiles& open) {
  for (size_t i = 0; i < open.files.size(); ++i) {
    const double weight = open.weights.empty() ? 0 : open.weights[i];
    hash = hash_numbers(hash, {open.files[i]->fingerprint(), std::bit_cast<uint64_t>(weight)});
  }
  return hash;
}

uint64_t hash_samples(const SampleOptions& samples) {
  return hash_numbers(0, {static_cast<uint64_t>(samples.seq_length), static_cast<uint64_t>(samples.vocab_size),
                          static_cast<uint64_t>(samples.eod_token), uint64_t{samples.eod_mask_loss},
                          static_cast<uint64_t>(samples.order), samples.seed});
}

// `ranges` holds one range a file.
std::unique_ptr<SampleSource> make_source(const OpenFiles& open, const std::vector<TokenRange>& ranges,
                                          const std::string& what, const SampleOptions& samples) {
  std::vector<std::unique_ptr<SampleSource>> sources;
  for (size_t i = 0; i < open.files.size(); ++i) {
    const std::string name = i == 0 ? what : fmt::format("{} {}", what, i);
    sources.push_back(std::make_unique<GptDataset>(open.files[i], ranges[i], name, samples));
  }
  if (sources.size() == 1) {
    return std::move(sources.front());
  }
  return std::make_unique<BlendedSource>(std::move(sources), open.weights);
}

using Sources = std::array<std::unique_ptr<SampleSource>, kNumSplits>;
using Needed = std::array<bool, kNumSplits>;

// --data-path with --split. Returns the hash.
uint64_t open_split(const DataOptions& options, const Needed& needed, uint64_t hash, Sources& sources) {
  const SplitFractions fractions = parse_split(options.split);
  REQUIRE(fractions[0] > 0, ErrorCode::kUsage, "--split {}: the first number, training, must be above 0",
          options.split);
  const OpenFiles open = open_files(options.data_path);
  for (size_t split = 0; split < kNumSplits; ++split) {
    std::vector<TokenRange> ranges;
    for (const auto& file : open.files) {
      ranges.push_back(split_tokens(*file, fractions)[split]);
    }
    if (needed[split] && fractions[split] > 0) {
      sources[split] = make_source(open, ranges, kSplitNames[split], options.samples);
    }
    hash = hash_numbers(hash, {std::bit_cast<uint64_t>(fractions[split])});
  }
  return hash_files(hash, open);
}

// --train-data-path and its like. Returns the hash.
uint64_t open_whole(const DataOptions& options, const Needed& needed, uint64_t hash, Sources& sources) {
  const std::array paths = {&options.train_data_path, &options.valid_data_path, &options.test_data_path};
  for (size_t split = 0; split < kNumSplits; ++split) {
    if (!needed[split] || paths[split]->empty()) {
      continue;
    }
    const OpenFiles open = open_files(*paths[split]);
    std::vector<TokenRange> ranges;
    for (const auto& file : open.files) {
      ranges.push_back({0, file->num_tokens()});
    }
    sources[split] = make_source(open, ranges, kSplitNames[split], options.samples);
    hash = hash_files(hash_numbers(hash, {split}), open);
  }
  return hash;
}

void check_flags(const DataOptions& options) {
  const bool per_split =
      !options.train_data_path.empty() || !options.valid_data_path.empty() || !options.test_data_path.empty();
  const int forms = int{!options.data_path.empty()} + int{per_split} + int{options.mock_data};
  REQUIRE(forms == 1, ErrorCode::kUsage,
          "expected exactly one of --data-path, --train-data-path (with --valid-data-path, --test-data-path) and "
          "--mock-data; found {}",
          forms == 0 ? "none" : "more than one");
  REQUIRE(!per_split || !options.train_data_path.empty(), ErrorCode::kUsage,
          "--valid-data-path and --test-data-path need --train-data-path");
}

}  // namespace

WeightedPaths parse_data_path(const std::vector<std::string>& entries) {
  WeightedPaths result;
  bool weighted = !entries.empty() && entries.size() % 2 == 0;
  for (size_t i = 0; weighted && i < entries.size(); i += 2) {
    weighted = number_in(entries[i]).has_value();
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (weighted && i % 2 == 0) {
      result.weights.push_back(*number_in(entries[i]));
      REQUIRE(result.weights.back() > 0, ErrorCode::kUsage,
              "--data-path: expected a weight above 0 before {}, found {}", entries[i + 1], entries[i]);
    } else {
      result.paths.push_back(entries[i]);
    }
  }
  return result;
}

DataSources open_datasets(const DataOptions& options) {
  check_flags(options);
  const Needed needed = {true, options.need_valid, options.need_test};
  Sources sources;
  uint64_t hash = hash_samples(options.samples);
  if (!options.data_path.empty()) {
    hash = open_split(options, needed, hash, sources);
  } else if (!options.mock_data) {
    hash = open_whole(options, needed, hash, sources);
  }
  for (size_t split = 0; options.mock_data && split < kNumSplits; ++split) {
    if (needed[split]) {
      sources[split] = std::make_unique<MockSource>(kSplitNames[split], options.samples);
    }
  }
  return {std::move(sources[0]), std::move(sources[1]), std::move(sources[2]), hash};
}

}  // namespace ashlar
