#include "runtime/data/blend.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <set>
#include <thread>

#include "runtime/base/rng.h"
#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace data_test;

// Megatron's rule, straight through from sample 0.
std::vector<BlendPlace> straight(std::vector<double> weights, int64_t count) {
  double sum = 0;
  for (const double weight : weights) {
    sum += weight;
  }
  for (double& weight : weights) {
    weight /= sum;
  }
  std::vector<int64_t> taken(weights.size());
  std::vector<BlendPlace> places;
  for (int64_t i = 0; i < count; ++i) {
    size_t best = 0;
    for (size_t d = 1; d < weights.size(); ++d) {
      const double at = std::max(static_cast<double>(i), 1.0);
      if (weights[d] * at - static_cast<double>(taken[d]) > weights[best] * at - static_cast<double>(taken[best])) {
        best = d;
      }
    }
    places.push_back({best, taken[best]++});
  }
  return places;
}

TEST(BlendRule, IsMegatronsRuleInAnyOrderOfAsking) {
  const int64_t count = 5000;  // beyond 1,024 places, so that the distance doubles thrice
  for (const std::vector<double>& weights :
       {std::vector<double>{1, 1}, {0.3, 0.7}, {1, 2, 3}, {1, 1, 1}, {0.001, 0.999}, {5}}) {
    const std::vector<BlendPlace> expected = straight(weights, count);
    const BlendRule rule(weights);
    const PhiloxStream random(1, RngPurpose::kTest, 0);
    for (uint64_t i = 0; i < 3000; ++i) {
      // Forward runs, jumps ahead and jumps back.
      const auto sample = static_cast<int64_t>(i % 3 == 0 ? i : random.below(i, static_cast<uint64_t>(count)));
      const BlendPlace place = rule.at(sample);
      ASSERT_EQ(place.source, expected[static_cast<size_t>(sample)].source) << "sample " << sample;
      ASSERT_EQ(place.sample, expected[static_cast<size_t>(sample)].sample) << "sample " << sample;
    }
  }
}

TEST(BlendRule, CountsStayNearTheWeights) {
  const std::vector<double> weights = {0.5, 0.3, 0.15, 0.05};
  const BlendRule rule(weights);
  std::vector<int64_t> taken(weights.size());
  for (int64_t i = 0; i < 20'000; ++i) {
    const BlendPlace place = rule.at(i);
    EXPECT_EQ(place.sample, taken[place.source]) << "each source is read in its own order, without gaps";
    ++taken[place.source];
    for (size_t d = 0; d < weights.size(); ++d) {
      ASSERT_LT(std::abs(weights[d] * static_cast<double>(i + 1) - static_cast<double>(taken[d])), 2.0);
    }
  }
}

TEST(BlendRule, LimitsGiveEverySampleOnceAnEpoch) {
  const std::vector<int64_t> limits = {7, 1, 30, 13};
  const BlendRule rule({7, 1, 30, 13}, limits);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::pair<size_t, int64_t>> seen;
    for (int64_t i = 0; i < 51; ++i) {
      const BlendPlace place = rule.at(epoch * 51 + i);
      EXPECT_EQ(place.sample / limits[place.source], epoch);
      seen.insert({place.source, place.sample});
    }
    EXPECT_EQ(seen.size(), 51u);
  }
  const BlendPlace back = rule.at(0);
  EXPECT_EQ(back.source, 2u);
  EXPECT_EQ(back.sample, 0);
}

TEST(BlendRule, AnswersThreadsAlike) {
  const std::vector<double> weights = {0.2, 0.5, 0.3};
  const std::vector<BlendPlace> expected = straight(weights, 4000);
  const BlendRule rule(weights);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (size_t first = 0; first < 3; ++first) {
    threads.emplace_back([&, first] {
      for (size_t i = first; i < expected.size(); i += 3) {
        const BlendPlace place = rule.at(static_cast<int64_t>(i));
        wrong += place.source == expected[i].source && place.sample == expected[i].sample ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST(BlendRule, RefusesBadWeights) {
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    expect_error(ErrorCode::kUsage, {"--data-path", "weights"}, [&] { BlendRule rule({1.0, bad}); });
  }
}

}  // namespace
}  // namespace ashlar
