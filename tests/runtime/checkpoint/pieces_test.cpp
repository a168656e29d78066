#include "runtime/checkpoint/pieces.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/base/rng.h"

namespace ashlar {
namespace {

// Global index of every element of a piece, -1 for padding: by the arithmetic of single indices, which knows no runs.
std::vector<int64_t> elements_of(const TensorPiece& piece) {
  Shape held = piece.global;
  if (piece.split_dim >= 0) {
    held.set(piece.split_dim, piece.extent);
  }
  std::vector<int64_t> elements;
  for (int64_t element = piece.begin; element < piece.end; ++element) {
    int64_t rest = element, global = 0, stride = 1;
    bool is_padding = false;
    for (int dim = held.num_dims() - 1; dim >= 0; --dim) {
      const int64_t index = rest % held[dim] + (dim == piece.split_dim ? piece.start : 0);
      rest /= held[dim];
      is_padding = is_padding || index >= piece.global[dim];
      global += index * stride;
      stride *= piece.global[dim];
    }
    elements.push_back(is_padding ? -1 : global);
  }
  return elements;
}

std::string text_of(const TensorPiece& piece) {
  return fmt::format("{} along {} [{}, +{}) elements [{}, {})", piece.global.text(), piece.split_dim, piece.start,
                     piece.extent, piece.begin, piece.end);
}

// Pieces of a shape split in every way, whole and cut at places that a seed chooses.
std::vector<TensorPiece> pieces_of(const Shape& global) {
  std::vector<ShardSpec> shards = {ShardSpec::replicated(global)};
  for (int dim = 0; dim < global.num_dims(); ++dim) {
    for (int count = 1; count <= 4; ++count) {
      for (int index = 0; index < count; ++index) {
        shards.push_back(ShardSpec::split(global, dim, index, count, (global[dim] + count - 1) / count * count));
      }
    }
  }
  const PhiloxStream random(3, RngPurpose::kTest, 0);
  uint64_t draw = 0;
  std::vector<TensorPiece> pieces;
  for (const ShardSpec& shard : shards) {
    const auto count = static_cast<uint64_t>(shard.local().num_elements());
    const auto cut = static_cast<int64_t>(random.below(draw++, count + 1));
    pieces.push_back(piece_of(shard, 0, shard.local().num_elements()));
    pieces.push_back(piece_of(shard, 0, cut));
    pieces.push_back(piece_of(shard, cut / 2, cut - cut / 2));
  }
  return pieces;
}

TEST(Pieces, RunsAreTheElementsThatAreNoPadding) {
  for (const TensorPiece& piece : pieces_of({3, 5, 2})) {
    std::vector<int64_t> found(static_cast<size_t>(piece.end - piece.begin), -1);
    int64_t last = -1;
    for_each_run(piece, [&](int64_t position, int64_t global, int64_t length) {
      EXPECT_GT(position, last);
      last = position;
      for (int64_t at = 0; at < length; ++at) {
        found.at(static_cast<size_t>(position + at)) = global + at;
      }
    });
    EXPECT_EQ(found, elements_of(piece)) << text_of(piece);
  }
}

TEST(Pieces, WithoutPaddingTheSameElementsAreHeld) {
  for (const TensorPiece& piece : pieces_of({3, 5, 2})) {
    std::vector<int64_t> expected = elements_of(piece);
    std::erase(expected, -1);
    EXPECT_EQ(elements_of(without_padding(piece)), expected) << text_of(piece);
  }
}

TEST(Pieces, CommonRunsAreWhatBothHold) {
  const std::vector<TensorPiece> pieces = pieces_of({3, 5, 2});
  for (const TensorPiece& a : pieces) {
    const std::vector<int64_t> in_a = elements_of(a);
    for (const TensorPiece& b : pieces) {
      const std::vector<int64_t> in_b = elements_of(b);
      std::vector<int64_t> found(in_a.size(), -1);  // of a's elements: their place in b
      for_each_common_run(a, b, [&](int64_t position_a, int64_t position_b, int64_t length) {
        for (int64_t at = 0; at < length; ++at) {
          found.at(static_cast<size_t>(position_a + at)) = position_b + at;
        }
      });
      std::vector<int64_t> expected;
      for (const int64_t element : in_a) {
        const auto place = element < 0 ? in_b.end() : std::find(in_b.begin(), in_b.end(), element);
        expected.push_back(place == in_b.end() ? -1 : place - in_b.begin());
      }
      ASSERT_EQ(found, expected) << text_of(a) << " and " << text_of(b);
    }
  }
}

TEST(Pieces, AScalarIsOneElement) {
  const TensorPiece scalar = piece_of(ShardSpec::replicated({}), 0, 1);
  int runs = 0;
  for_each_common_run(scalar, scalar, [&](int64_t a, int64_t b, int64_t length) {
    EXPECT_EQ(a + b, 0);
    EXPECT_EQ(length, 1);
    ++runs;
  });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace ashlar
