// Several sample sources as one, mixed by Megatron's rule.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/data/batch.h"

namespace ashlar {

// Which source gives sample i, and which of its samples.
struct BlendPlace {
  size_t source = 0;
  int64_t sample = 0;
};

// Sample i goes to the source with the largest w_d * max(i, 1) - taken_d (the first of equals), where w are the weights
// scaled to the sum 1 and taken_d is what source d gave before. With limits the rule runs within an epoch of
// sum(limits) samples: source d is passed over once it has given limits_d, so each gives exactly that many, and taken
// starts anew.
//
// The rule has no closed form, so counts are kept at 1,024 places at equal distances; when the row of places is full,
// every second is dropped and the distance doubles. Going forward costs one step of the rule a sample, going back at
// most one distance; memory never grows. The answers depend on i alone. Thread safe.
class BlendRule {
 public:
  explicit BlendRule(std::vector<double> weights, std::vector<int64_t> limits = {});

  BlendPlace at(int64_t sample) const;

 private:
  void step() const;
  void keep_place() const;
  void go_to(int64_t position) const;
  size_t next_source() const;

  std::vector<double> weights_;
  std::vector<int64_t> limits_;
  int64_t epoch_samples_ = 0;  // 0: no limits, one endless epoch
  mutable std::mutex mutex_;
  mutable int64_t position_ = 0;         // taken_ counts the samples before it
  mutable std::vector<int64_t> taken_;   // one count a source
  mutable std::vector<int64_t> places_;  // counts at position 0, distance, 2 * distance, ...
  mutable int64_t num_places_ = 0;
  mutable int64_t distance_ = 1;
};

// Weighted, or without weights: every source in proportion to its size, each sample exactly once an epoch.
class BlendedSource : public SampleSource {
 public:
  BlendedSource(std::vector<std::unique_ptr<SampleSource>> sources, const std::vector<double>& weights);

  int64_t seq_length() const override { return sources_.front()->seq_length(); }
  int64_t samples_per_epoch() const override { return samples_per_epoch_; }  // sum over the sources
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override;
  std::string description() const override;

 private:
  std::vector<std::unique_ptr<SampleSource>> sources_;
  std::vector<double> weights_;  // as given; empty: by size
  int64_t samples_per_epoch_;
  BlendRule rule_;
};

}  // namespace ashlar
