// How data ranks share out flat arenas: whole blocks of the norm, equal shares, everything owned once.
#include "parallel/zero/flat_layout.h"

#include <gtest/gtest.h>

#include "kernels/plain_types.h"

namespace ashlar {
namespace {

constexpr int64_t kBlock = kernels::kNormBlock;

// Odd, tiny and large tensors on two stages; the last shares the value of the first.
std::vector<FlatTensor> some_tensors() {
  return {{3 * kBlock + 5, 0, true, false}, {1, 0, false, false}, {kBlock, 0, false, false},
          {10007, 0, false, false},         {7, 1, false, false}, {2 * kBlock, 1, false, false},
          {3 * kBlock + 5, 1, true, true}};
}

TEST(FlatLayout, EverythingIsOwnedOnceInWholeBlocks) {
  const std::vector<FlatTensor> tensors = some_tensors();
  for (const int num_shards : {1, 2, 3, 4, 7}) {
    for (const int64_t bucket : {int64_t{1}, kBlock, 5 * kBlock, int64_t{40000000}}) {
      const FlatLayout layout = lay_out_shards(tensors, {num_shards, bucket});
      int64_t end = 0;
      for (const FlatBucket& at : layout.buckets) {
        EXPECT_EQ(at.begin, end);
        EXPECT_EQ((at.end - at.begin) % (num_shards * kBlock), 0);
        EXPECT_LE(at.end - at.begin, (bucket + num_shards * kBlock - 1) / (num_shards * kBlock) * num_shards * kBlock);
        EXPECT_EQ(at.has_value, at.first_tensor != tensors.size() - 1);
        end = at.end;
      }
      EXPECT_EQ(end, layout.num_elements);
      EXPECT_EQ(layout.offsets.back(), layout.num_value_elements);

      std::vector<std::vector<int>> owners(tensors.size());
      for (size_t at = 0; at < tensors.size(); ++at) {
        EXPECT_EQ(layout.offsets[at] % kBlock, 0);
        owners[at].assign(static_cast<size_t>(tensors[at].num_elements), 0);
      }
      std::vector<std::vector<std::pair<int64_t, int64_t>>> of_first, of_copy;
      for (int shard = 0; shard < num_shards; ++shard) {
        int64_t last_end = 0;
        of_first.emplace_back();
        of_copy.emplace_back();
        for (const FlatPiece& piece : owned_pieces(layout, tensors, shard)) {
          EXPECT_EQ(piece.begin % kBlock, 0) << "a block of the norm is cut";
          EXPECT_GE(piece.owned_begin, last_end);
          last_end = piece.owned_begin + piece.num_elements();
          if (piece.tensor + 1 < tensors.size()) {
            EXPECT_LE(last_end, layout.num_owned());
          }
          for (int64_t at = piece.begin; at < piece.end; ++at) {
            ++owners[piece.tensor][static_cast<size_t>(at)];
          }
          if (tensors[piece.tensor].is_tied) {
            (piece.tensor == 0 ? of_first : of_copy).back().push_back({piece.begin, piece.end});
          }
        }
      }
      EXPECT_EQ(of_first, of_copy) << "both uses of a tied table are cut alike";
      for (const std::vector<int>& of_tensor : owners) {
        EXPECT_EQ(std::count(of_tensor.begin(), of_tensor.end(), 1), static_cast<std::ptrdiff_t>(of_tensor.size()));
      }
    }
  }
}

// Padding of GPT-2's 124 million parameters on 8 data ranks: what aligned tensors and whole shares cost.
TEST(FlatLayout, PadsLittle) {
  std::vector<FlatTensor> tensors{{50304 * 768, 0, true, false}, {1024 * 768, 0, false, false}};
  for (int layer = 0; layer < 12; ++layer) {
    for (const int64_t elements :
         {768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768}) {
      tensors.push_back({elements, 0, false, false});
    }
  }
  tensors.push_back({768, 0, false, false});
  tensors.push_back({768, 0, false, false});
  int64_t elements = 0;
  for (const FlatTensor& tensor : tensors) {
    elements += tensor.num_elements;
  }
  const FlatLayout layout = lay_out_shards(tensors, {8, 40000000});
  EXPECT_LT(static_cast<double>(layout.num_elements), 1.005 * static_cast<double>(elements));
}

}  // namespace
}  // namespace ashlar
