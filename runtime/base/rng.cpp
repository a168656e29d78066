#include "runtime/base/rng.h"

#include <cmath>
#include <numbers>

namespace ashlar {

PhiloxBlock philox_4x32_10(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ull;
  }
  return hash;
}

PhiloxStream::PhiloxStream(uint64_t seed, RngPurpose purpose, uint64_t stream)
    : key_{static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(stream), static_cast<uint32_t>(seed >> 32)},
      purpose_(static_cast<uint32_t>(purpose)),
      stream_high_(static_cast<uint32_t>(stream >> 32)) {}

PhiloxBlock PhiloxStream::block(uint64_t index) const {
  return philox_4x32_10({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream_high_, purpose_},
                        key_);
}

uint32_t PhiloxStream::word(uint64_t index) const {
  return block(index / 4)[index % 4];
}

double PhiloxStream::uniform(uint64_t index) const {
  return word(index) * 0x1p-32;
}

namespace {

// Normals 2 * pair and 2 * pair + 1 of a block.
std::array<float, 2> normal_pair(const PhiloxBlock& words, size_t pair) {
  const double radius = std::sqrt(-2.0 * std::log((words[2 * pair] + 1.0) * 0x1p-32));
  const double angle = 2.0 * std::numbers::pi * (words[2 * pair + 1] * 0x1p-32);
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace

float PhiloxStream::normal(uint64_t index) const {
  return normal_pair(block(index / 4), index % 4 / 2)[index % 2];
}

void PhiloxStream::normals(uint64_t first, std::span<float> out) const {
  size_t at = 0;
  while (at < out.size()) {
    const uint64_t index = first + at;
    const PhiloxBlock words = block(index / 4);
    for (uint64_t lane = index % 4; lane < 4 && at < out.size(); ++lane, ++at) {
      const std::array<float, 2> pair = normal_pair(words, lane / 2);
      out[at] = pair[lane % 2];
      if (lane % 2 == 0 && at + 1 < out.size()) {
        out[++at] = pair[1];
        ++lane;
      }
    }
  }
}

uint64_t PhiloxStream::below(uint64_t index, uint64_t bound) const {
  // The high half of a 64 x 64 bit product, for bounds below 2^32.
  const PhiloxBlock words = block(index);
  return (words[0] * bound + ((words[1] * bound) >> 32)) >> 32;
}

}  // namespace ashlar
