#include "runtime/data/permutation.h"

#include <algorithm>
#include <bit>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

// Four rounds already make a strong pseudo-random permutation of a wide block (Luby and Rackoff, 1988); small domains
// mix more slowly, and at 8 rounds each position of a 5-element permutation is even to a chi-square test.
constexpr uint64_t kRounds = 8;

}  // namespace

Permutation::Permutation(uint64_t seed, uint64_t stream, int64_t n)
    : seed_(seed), stream_(stream), n_(static_cast<uint64_t>(n)) {
  DCHECK(n >= 1 && n <= int64_t{1} << 62, "permutation of {}", n);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(n_ - 1)) + 1) / 2);
}

int64_t Permutation::at(int64_t epoch, int64_t k) const {
  DCHECK(epoch >= 0 && k >= 0 && static_cast<uint64_t>(k) < n_, "epoch {}, {} of {}", epoch, k, n_);
  // An odd multiplier keeps the streams of different epochs apart.
  const PhiloxStream random(seed_, RngPurpose::kShuffle,
                            stream_ + static_cast<uint64_t>(epoch) * 0x9E3779B97F4A7C15ull);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(k);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (random.block((round << 32) | right)[0] & mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= n_);
  return static_cast<int64_t>(value);
}

}  // namespace ashlar
