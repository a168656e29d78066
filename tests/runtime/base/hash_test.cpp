#include "runtime/base/hash.h"

#include <gtest/gtest.h>

#include <vector>

namespace ashlar {
namespace {

// Answers of libxxhash 0.8.1 over bytes 7 i + 1, at the lengths where XXH3 changes its method.
TEST(HashBytes, IsXxh3) {
  std::vector<uint8_t> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(7 * i + 1);
  }
  struct Answer {
    size_t length;
    uint64_t plain;
    uint64_t seeded;  // with seed 0x123456789
  };
  for (const Answer& answer : {Answer{0, 0x2d06800538d394c2ull, 0x41ef94d6bbd7e7b1ull},
                               {1, 0xe12ef9d2eb86ceebull, 0xed29164848191054ull},
                               {3, 0x5c83885a0fb5d516ull, 0xe9f17524612643d2ull},
                               {8, 0x96cc97a6768fd7a9ull, 0xbda5c99b9c31cfe7ull},
                               {16, 0x913bd4a8038027a7ull, 0xc231dfb16372d220ull},
                               {17, 0x2bf6f66973a6179dull, 0x0b61819a32d621ddull},
                               {128, 0xc4399c7829d0628full, 0xe3f7df269189d000ull},
                               {129, 0x8433489056750b32ull, 0xe73456fe973b8043ull},
                               {240, 0x3c0bb96864e543a1ull, 0x3ce7e18f19c55708ull},
                               {241, 0xbff7215089202d8full, 0xdf0f75c683fc0ecdull},
                               {1024, 0xac8e32e4ea3ba062ull, 0x515953660bf75cccull},
                               {5000, 0x882162ebfafc2c3full, 0x78318c1e9ab5b983ull}}) {
    EXPECT_EQ(hash_bytes(bytes.data(), answer.length), answer.plain) << answer.length;
    EXPECT_EQ(hash_bytes(bytes.data(), answer.length, 0x123456789), answer.seeded) << answer.length;
  }
  const uint64_t whole = hash_bytes(bytes.data(), bytes.size());
  bytes[4321] ^= 1;
  EXPECT_NE(hash_bytes(bytes.data(), bytes.size()), whole);
}

}  // namespace
}  // namespace ashlar
