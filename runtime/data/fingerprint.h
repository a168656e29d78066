// Hashes of data for the check that all ranks see the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace ashlar {

// Pure. Both go on from the hash so far, which is the seed of hash_bytes.
uint64_t hash_numbers(uint64_t hash, std::initializer_list<uint64_t> numbers);
// 64 bytes at 64 places spread evenly over the span (all of it when it is short): touches at most 128 pages.
uint64_t hash_places(uint64_t hash, std::span<const std::byte> bytes);

}  // namespace ashlar
