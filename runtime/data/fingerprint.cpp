#include "runtime/data/fingerprint.h"

#include "runtime/base/hash.h"

namespace ashlar {

uint64_t hash_numbers(uint64_t hash, std::initializer_list<uint64_t> numbers) {
  return hash_bytes(numbers.begin(), numbers.size() * sizeof(uint64_t), hash);
}

uint64_t hash_places(uint64_t hash, std::span<const std::byte> bytes) {
  constexpr size_t kPlaces = 64;
  constexpr size_t kBytes = 64;
  if (bytes.size() <= kPlaces * kBytes) {
    return hash_bytes(bytes.data(), bytes.size(), hash);
  }
  const size_t step = (bytes.size() - kBytes) / (kPlaces - 1);
  for (size_t place = 0; place < kPlaces; ++place) {
    const size_t begin = place + 1 < kPlaces ? place * step : bytes.size() - kBytes;
    hash = hash_bytes(bytes.data() + begin, kBytes, hash);
  }
  return hash;
}

}  // namespace ashlar
