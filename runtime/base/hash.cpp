#include "runtime/base/hash.h"

#define XXH_INLINE_ALL  // compiled into this file, for this machine's vector instructions; nothing to link
#include <xxhash.h>

namespace ashlar {

uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace ashlar
