#include "runtime/checkpoint/blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

namespace ashlar {
namespace {

// Cuts `global` (element i = i) into the stored blocks, copies them into the wanted one, and compares with the index
// arithmetic of ShardSpec, which knows nothing of blocks.
void expect_copied(const Shape& global, int stored_dim, int64_t stored_parts, const ShardSpec& wanted) {
  std::vector<int32_t> whole(static_cast<size_t>(global.num_elements()));
  std::iota(whole.begin(), whole.end(), 1);
  const Block all = block_of(global, -1, 0, 0);
  const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };

  std::vector<int32_t> got(static_cast<size_t>(wanted.local().num_elements()), 0);
  int64_t num_common = 0;
  const int64_t extent = stored_dim < 0 ? 1 : global[stored_dim];
  for (int64_t part = 0; part < stored_parts; ++part) {
    const int64_t start = extent * part / stored_parts;
    const Block from = block_of(global, stored_dim, start, extent * (part + 1) / stored_parts - start);
    std::vector<int32_t> stored(static_cast<size_t>(from.shape.num_elements()), -1);
    copy_common_elements(from, bytes(stored), all, bytes(whole), 4);
    copy_common_elements(block_of(wanted), bytes(got), from, bytes(stored), 4);
    num_common += num_common_elements(block_of(wanted), from);
  }
  EXPECT_EQ(num_common, wanted.num_valid_elements());

  std::vector<int32_t> expected(got.size(), 0);
  wanted.for_each_run([&](int64_t local, int64_t index, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      expected[static_cast<size_t>(local + i)] = static_cast<int32_t>(index + i + 1);
    }
  });
  EXPECT_EQ(got, expected) << global.text() << " stored along " << stored_dim << " in " << stored_parts
                           << ", wanted along " << wanted.split_dim << " part " << wanted.index << " of "
                           << wanted.count;
}

TEST(Blocks, EveryStoredSplitReachesEveryWantedSplit) {
  const Shape global{3, 4, 5, 2};
  for (int stored_dim = -1; stored_dim < 4; ++stored_dim) {
    for (int64_t parts = 1; parts <= (stored_dim < 0 ? 1 : global[stored_dim]); ++parts) {
      expect_copied(global, stored_dim, parts, ShardSpec::replicated(global));
      for (int dim = 0; dim < 4; ++dim) {
        for (int count = 1; count <= 6; ++count) {
          const int64_t padded = (global[dim] + count - 1) / count * count;
          for (int index = 0; index < count; ++index) {
            expect_copied(global, stored_dim, parts, ShardSpec::split(global, dim, index, count, padded));
          }
        }
      }
    }
  }
}

TEST(Blocks, AScalarIsOneElement) {
  const Block scalar = block_of(ShardSpec::replicated({}));
  EXPECT_EQ(num_common_elements(scalar, scalar), 1);
  const std::array<std::byte, 2> from{std::byte{7}, std::byte{9}};
  std::array<std::byte, 2> to{};
  copy_common_elements(scalar, to.data(), scalar, from.data(), 1);
  EXPECT_EQ(to[0], std::byte{7});
  EXPECT_EQ(to[1], std::byte{0});
}

}  // namespace
}  // namespace ashlar
