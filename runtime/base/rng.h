// Counter-based random numbers (Philox-4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11,
// section 3.3 and table 2). A number is a pure function of what it is for: seed, purpose, tensor, global element index.
// So every grid draws the same bits, whatever it draws first.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace ashlar {

using PhiloxBlock = std::array<uint32_t, 4>;

// Pure.
PhiloxBlock philox_4x32_10(PhiloxBlock counter, std::array<uint32_t, 2> key);

// What a random number is used for: part of the key, so that streams never meet.
enum class RngPurpose : uint32_t { kInit = 1, kShuffle = 2, kDropout = 3, kSample = 4, kTest = 5 };

// Pure. A 64-bit hash of a name (FNV-1a), to make a tensor's stream out of its global name.
uint64_t stream_of(std::string_view name);

// One stream of random numbers, addressed by index. Pure.
class PhiloxStream {
 public:
  PhiloxStream(uint64_t seed, RngPurpose purpose, uint64_t stream);

  PhiloxBlock block(uint64_t index) const;  // four words
  uint32_t word(uint64_t index) const;      // word `index % 4` of block `index / 4`
  double uniform(uint64_t index) const;     // in [0, 1), 32 bits
  float normal(uint64_t index) const;       // mean 0, deviation 1 (Box-Muller in double)
  // out[i] = normal(first + i), four from one block.
  void normals(uint64_t first, std::span<float> out) const;
  uint64_t below(uint64_t index, uint64_t bound) const;  // in [0, bound), for bound below 2^32 without visible bias

  // What a block is made of besides its index: philox_4x32_10({index low, index high, high()[0], high()[1]}, key()).
  std::array<uint32_t, 2> key() const { return key_; }
  std::array<uint32_t, 2> high() const { return {stream_high_, purpose_}; }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t purpose_;
  uint32_t stream_high_;
};

}  // namespace ashlar
