#include "runtime/comm/host/streaming_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace ashlar {
namespace {

// Every alignment of both sides, sizes around the lines that are stored whole, and not a byte beside them.
TEST(StreamingCopy, CopiesEveryByteAndNoOther) {
  constexpr size_t kMargin = 64;
  std::vector<std::byte> from(1024);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::byte>(i * 37 + i / 256 + 1);
  }
  for (const size_t bytes : {0u, 1u, 31u, 63u, 64u, 65u, 127u, 128u, 191u, 512u, 700u}) {
    for (size_t shift = 0; shift < 64; ++shift) {
      for (const size_t source : {size_t{0}, size_t{5}, 64 - shift}) {
        std::vector<std::byte> to(bytes + shift + 2 * kMargin, std::byte{0xEE});
        std::vector<std::byte> expected = to;
        std::copy_n(from.data() + source, bytes, expected.data() + kMargin + shift);
        copy_streaming(to.data() + kMargin + shift, from.data() + source, bytes);
        ASSERT_EQ(to, expected) << bytes << " bytes, shift " << shift << ", from " << source;
      }
    }
  }
}

}  // namespace
}  // namespace ashlar
