#include "runtime/data/fingerprint.h"

#include <xxhash.h>

namespace ashlar {

uint64_t hash_bytes(uint64_t hash, std::span<const std::byte> bytes) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash);
}

uint64_t hash_numbers(uint64_t hash, std::initializer_list<uint64_t> numbers) {
  return hash_bytes(hash, std::as_bytes(std::span(numbers.begin(), numbers.size())));
}

uint64_t hash_places(uint64_t hash, std::span<const std::byte> bytes) {
  constexpr size_t kPlaces = 64;
  constexpr size_t kBytes = 64;
  if (bytes.size() <= kPlaces * kBytes) {
    return hash_bytes(hash, bytes);
  }
  const size_t step = (bytes.size() - kBytes) / (kPlaces - 1);
  for (size_t place = 0; place < kPlaces; ++place) {
    const size_t begin = place + 1 < kPlaces ? place * step : bytes.size() - kBytes;
    hash = hash_bytes(hash, bytes.subspan(begin, kBytes));
  }
  return hash;
}

}  // namespace ashlar
