#include "runtime/comm/host/streaming_copy.h"

#include <cstdint>
#include <cstring>

// ThreadSanitizer does not see these stores.
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>
#define ASHLAR_STREAMING_STORES
#endif

namespace ashlar {

void copy_streaming(std::byte* dst, const std::byte* src, size_t bytes) {
#ifdef ASHLAR_STREAMING_STORES
  constexpr size_t kLine = 64;
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(dst) % kLine) % kLine;
  if (bytes >= head + kLine) {
    std::memcpy(dst, src, head);
    size_t at = head;
    for (; at + kLine <= bytes; at += kLine) {  // whole lines, which leave the core in one piece
      for (size_t part = 0; part < kLine; part += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(dst + at + part),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + at + part)));
      }
    }
    _mm_sfence();  // a later flag of this thread says that the data is there
    dst += at;
    src += at;
    bytes -= at;
  }
#endif
  if (bytes > 0) {
    std::memcpy(dst, src, bytes);
  }
}

}  // namespace ashlar
