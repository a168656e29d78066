// A fast 64-bit hash of bytes, for "is this the same data" questions: checkpoint slices, parameters across ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar {

// Pure. XXH3 in its 64-bit form: the same number on every machine, at about the speed of memory. Not cryptographic.
uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed = 0);

}  // namespace ashlar
