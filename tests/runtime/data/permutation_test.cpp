#include "runtime/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace ashlar {
namespace {

std::vector<int64_t> all_of(const Permutation& permutation, int64_t epoch, int64_t n) {
  std::vector<int64_t> values;
  for (int64_t k = 0; k < n; ++k) {
    values.push_back(permutation.at(epoch, k));
  }
  return values;
}

TEST(Permutation, EveryElementOnce) {
  std::vector<int64_t> sizes = {127, 128, 129, 1000, 4095, 4096, 4097, 65537};
  for (int64_t n = 1; n <= 40; ++n) {
    sizes.push_back(n);
  }
  for (const int64_t n : sizes) {
    const Permutation permutation(1234, 5, n);
    for (const int64_t epoch : {0, 1, 1'000'000}) {
      std::vector<int64_t> values = all_of(permutation, epoch, n);
      std::sort(values.begin(), values.end());
      for (int64_t k = 0; k < n; ++k) {
        ASSERT_EQ(values[static_cast<size_t>(k)], k) << "n " << n << ", epoch " << epoch;
      }
    }
  }
}

TEST(Permutation, EpochsSeedsAndStreamsDiffer) {
  constexpr int64_t kCount = 1000;
  const std::vector<int64_t> base = all_of(Permutation(1, 2, kCount), 0, kCount);
  const std::vector<std::vector<int64_t>> others = {
      all_of(Permutation(1, 2, kCount), 1, kCount), all_of(Permutation(1, 2, kCount), 2, kCount),
      all_of(Permutation(2, 2, kCount), 0, kCount), all_of(Permutation(1, 3, kCount), 0, kCount),
      all_of(Permutation(uint64_t{1} << 32 | 1, 2, kCount), 0, kCount)};
  for (const auto& other : others) {
    int equal = 0;
    for (size_t k = 0; k < base.size(); ++k) {
      equal += base[k] == other[k] ? 1 : 0;
    }
    EXPECT_LT(equal, 15) << "two random orders agree at about one place";
  }
}

// Chi-square over which element comes at a place: dof n-1 at each of n places, so its sum is about n(n-1).
TEST(Permutation, PlacesAreEvenlyUsedOverEpochs) {
  constexpr int kEpochs = 4000;
  for (const int64_t n : {2, 3, 5, 7, 16, 50}) {
    const Permutation permutation(99, 0, n);
    std::vector<std::vector<int>> counts(static_cast<size_t>(n), std::vector<int>(static_cast<size_t>(n)));
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (int64_t k = 0; k < n; ++k) {
        ++counts[static_cast<size_t>(k)][static_cast<size_t>(permutation.at(epoch, k))];
      }
    }
    const double expected = static_cast<double>(kEpochs) / static_cast<double>(n);
    double chi_square = 0;
    for (const auto& place : counts) {
      for (const int count : place) {
        chi_square += (count - expected) * (count - expected) / expected;
      }
    }
    const double degrees = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(chi_square, degrees + 6 * std::sqrt(2 * degrees)) << "n " << n;
  }
}

// Neighbours of the file order must not stay neighbours.
TEST(Permutation, BreaksRuns) {
  constexpr int64_t kCount = 100'000;
  const Permutation permutation(7, 0, kCount);
  int runs = 0;
  double product = 0;
  for (int64_t k = 0; k + 1 < kCount; ++k) {
    const int64_t here = permutation.at(0, k);
    const int64_t next = permutation.at(0, k + 1);
    runs += std::abs(next - here) == 1 ? 1 : 0;
    product += (static_cast<double>(here) / kCount - 0.5) * (static_cast<double>(next) / kCount - 0.5);
  }
  EXPECT_LT(runs, 12) << "two are expected";
  EXPECT_LT(std::abs(product / kCount * 12), 0.02) << "correlation of neighbours";
}

TEST(Permutation, HugeSizes) {
  for (const int64_t n : {(int64_t{1} << 31) + 1, int64_t{1} << 62, (int64_t{1} << 60) + 12345}) {
    const Permutation permutation(1, 1, n);
    std::set<int64_t> seen;
    for (int64_t k = 0; k < 1000; ++k) {
      const int64_t value = permutation.at(3, n - 1 - k);
      EXPECT_GE(value, 0);
      EXPECT_LT(value, n);
      EXPECT_TRUE(seen.insert(value).second);
    }
    EXPECT_GT(*seen.rbegin(), n / 2);
  }
}

// A checkpoint's data position only means something while these numbers stay.
TEST(Permutation, StaysWhatItIs) {
  EXPECT_EQ(all_of(Permutation(1234, 0, 10), 0, 10), (std::vector<int64_t>{1, 6, 7, 5, 8, 2, 4, 0, 3, 9}));
  EXPECT_EQ(all_of(Permutation(1234, 0, 10), 1, 10), (std::vector<int64_t>{9, 8, 7, 5, 3, 4, 2, 6, 1, 0}));
  EXPECT_EQ(Permutation(1234, 42, int64_t{1} << 40).at(5, 123456789), 449021854873);
}

}  // namespace
}  // namespace ashlar
