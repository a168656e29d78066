#include "runtime/data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

constexpr int64_t kMaxPlaces = 1024;

std::vector<int64_t> sizes_of(const std::vector<std::unique_ptr<SampleSource>>& sources) {
  std::vector<int64_t> sizes;
  for (const auto& source : sources) {
    sizes.push_back(source->samples_per_epoch());
  }
  return sizes;
}

BlendRule rule_for(const std::vector<std::unique_ptr<SampleSource>>& sources, const std::vector<double>& weights) {
  if (!weights.empty()) {
    return BlendRule(weights);
  }
  const std::vector<int64_t> sizes = sizes_of(sources);
  return BlendRule(std::vector<double>(sizes.begin(), sizes.end()), sizes);
}

}  // namespace

BlendRule::BlendRule(std::vector<double> weights, std::vector<int64_t> limits)
    : weights_(std::move(weights)), limits_(std::move(limits)), taken_(weights_.size()) {
  DCHECK(!weights_.empty() && (limits_.empty() || limits_.size() == weights_.size()), "{} weights, {} limits",
         weights_.size(), limits_.size());
  double sum = 0;
  for (const double weight : weights_) {
    REQUIRE(std::isfinite(weight) && weight > 0, ErrorCode::kUsage, "--data-path: expected weights above 0, found {}",
            weight);
    sum += weight;
  }
  for (double& weight : weights_) {
    weight /= sum;
  }
  epoch_samples_ = std::accumulate(limits_.begin(), limits_.end(), int64_t{0});
  places_.resize(static_cast<size_t>(kMaxPlaces) * weights_.size());
  num_places_ = 1;  // zeros at position 0
}

BlendPlace BlendRule::at(int64_t sample) const {
  DCHECK(sample >= 0, "sample {}", sample);
  const int64_t epoch = epoch_samples_ == 0 ? 0 : sample / epoch_samples_;
  const std::lock_guard lock(mutex_);
  go_to(sample - epoch * epoch_samples_);
  const size_t source = next_source();
  return {source, taken_[source] + (epoch == 0 ? 0 : epoch * limits_[source])};
}

size_t BlendRule::next_source() const {
  const auto count = static_cast<double>(std::max<int64_t>(position_, 1));
  size_t best = weights_.size();
  double best_error = 0;
  for (size_t source = 0; source < weights_.size(); ++source) {
    if (!limits_.empty() && taken_[source] == limits_[source]) {
      continue;
    }
    const double error = weights_[source] * count - static_cast<double>(taken_[source]);
    if (best == weights_.size() || error > best_error) {
      best = source;
      best_error = error;
    }
  }
  DCHECK(best < weights_.size(), "all sources are used up at {}", position_);
  return best;
}

void BlendRule::step() const {
  ++taken_[next_source()];
  ++position_;
  if (position_ == num_places_ * distance_) {
    keep_place();
  }
}

void BlendRule::keep_place() const {
  const size_t width = taken_.size();
  if (num_places_ == kMaxPlaces) {
    for (int64_t place = 1; 2 * place < kMaxPlaces; ++place) {
      std::copy_n(places_.begin() + 2 * place * std::ssize(taken_), width,
                  places_.begin() + place * std::ssize(taken_));
    }
    num_places_ = kMaxPlaces / 2;
    distance_ *= 2;
  }
  // The position is a multiple of the doubled distance too: kMaxPlaces is even.
  std::copy_n(taken_.begin(), width, places_.begin() + num_places_ * std::ssize(taken_));
  ++num_places_;
}

void BlendRule::go_to(int64_t position) const {
  const int64_t place = std::min(position / distance_, num_places_ - 1);
  if (position < position_ || place * distance_ > position_) {
    position_ = place * distance_;
    std::copy_n(places_.begin() + place * std::ssize(taken_), taken_.size(), taken_.begin());
  }
  while (position_ < position) {
    step();
  }
}

BlendedSource::BlendedSource(std::vector<std::unique_ptr<SampleSource>> sources, const std::vector<double>& weights)
    : sources_(std::move(sources)), weights_(weights), samples_per_epoch_(0), rule_(rule_for(sources_, weights_)) {
  for (const auto& source : sources_) {
    DCHECK(source->seq_length() == seq_length(), "sequence lengths {} and {}", source->seq_length(), seq_length());
    samples_per_epoch_ += source->samples_per_epoch();
  }
}

void BlendedSource::read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
                         std::span<float> mask) const {
  const BlendPlace place = rule_.at(sample);
  sources_[place.source]->read(place.sample, tokens, targets, mask);
}

std::string BlendedSource::description() const {
  std::string text = fmt::format("blend of {} sources, {}", sources_.size(),
                                 weights_.empty() ? "every sample once an epoch" : "by weight");
  for (size_t i = 0; i < sources_.size(); ++i) {
    text += weights_.empty() ? " | " : fmt::format(" | {} x ", weights_[i]);
    text += sources_[i]->description();
  }
  return text;
}

}  // namespace ashlar
