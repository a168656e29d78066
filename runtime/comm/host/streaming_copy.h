// Copies whose result nobody reads before it has left the caches.
#pragma once

#include <cstddef>

namespace ashlar {

// Tensors from this size on: two of them do not fit into the L2 cache of today's cores.
inline constexpr size_t kStreamingBytes = size_t{4} << 20;

// memcpy with stores that go past the caches, so that the old contents of `dst` are not fetched first: two bytes pass
// by for one that is copied instead of three.
void copy_streaming(std::byte* dst, const std::byte* src, size_t bytes);

}  // namespace ashlar
