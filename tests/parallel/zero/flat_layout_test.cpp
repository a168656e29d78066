// How data ranks share out flat arenas: whole blocks of the norm, equal shares, everything owned once.
#include "parallel/zero/flat_layout.h"

#include <gtest/gtest.h>

#include "kernels/plain_types.h"

namespace ashlar {
namespace {

constexpr int64_t kBlock = kernels::kNormBlock;

// Odd, tiny and large tensors in layers of two stages; the last shares the value of the first.
std::vector<FlatTensor> some_tensors() {
  return {{3 * kBlock + 5, 0, 0, true, false}, {1, 0, 0, false, false}, {kBlock, 0, 1, false, false},
          {10007, 0, 1, false, false},         {7, 1, 0, false, false}, {2 * kBlock, 1, 1, false, false},
          {3 * kBlock + 5, 1, 1, true, true}};
}

// Buckets follow each other within their layers, layers follow each other, and two neighbours fit into the pair.
void check_order(const FlatLayout& layout, int64_t most) {
  const int64_t unit = layout.sharding.num_shards * (layout.sharding.num_shards > 1 ? kBlock : 32);
  int64_t end = 0;
  size_t end_bucket = 0;
  const FlatLayer* last = nullptr;
  for (const FlatLayer& layer : layout.layers) {
    EXPECT_EQ(layer.begin, end);
    EXPECT_EQ(layer.first_bucket, end_bucket);
    EXPECT_EQ(&layout.layer_of(layer.stage, layer.layer), &layer);
    for (size_t at = layer.first_bucket; at < layer.end_bucket; ++at) {
      EXPECT_EQ(layout.buckets[at].begin, end);
      EXPECT_EQ(layout.buckets[at].num_elements() % unit, 0);
      EXPECT_LE(layout.buckets[at].num_elements(), (most + unit - 1) / unit * unit);
      end = layout.buckets[at].end;
    }
    EXPECT_EQ(layer.end, end);
    const int64_t place = layout.place_in_pair(layer);
    EXPECT_GE(place, 0);
    EXPECT_LE(place + layer.num_elements(), layout.num_pair_elements);
    if (last != nullptr && last->stage == layer.stage) {
      const int64_t other = layout.place_in_pair(*last);
      EXPECT_TRUE(place + layer.num_elements() <= other || other + last->num_elements() <= place)
          << "layers " << last->layer << " and " << layer.layer << " overlap";
    }
    end_bucket = layer.end_bucket;
    last = &layer;
  }
  EXPECT_EQ(end_bucket, layout.buckets.size());
  EXPECT_EQ(end, layout.num_elements);
}

TEST(FlatLayout, EverythingIsOwnedOnceInWholeBlocks) {
  const std::vector<FlatTensor> tensors = some_tensors();
  for (const int num_shards : {1, 2, 3, 4, 7}) {
    for (const int64_t bucket : {int64_t{1}, kBlock, 5 * kBlock, int64_t{40000000}}) {
      const FlatLayout layout =
          lay_out_flat(tensors, {.zero_stage = 1, .num_shards = num_shards, .bucket_elements = bucket});
      check_order(layout, bucket);
      EXPECT_EQ(layout.layers.size(), 4u);
      EXPECT_EQ(layout.offsets.back(), layout.num_value_elements);
      for (const FlatBucket& at : layout.buckets) {
        EXPECT_EQ(at.has_value, at.first_tensor != tensors.size() - 1);
        EXPECT_EQ(at.value_begin, at.has_value ? at.begin : at.begin - layout.offsets.back() + layout.offsets.front());
      }

      std::vector<std::vector<int>> owners(tensors.size());
      for (size_t at = 0; at < tensors.size(); ++at) {
        EXPECT_TRUE(num_shards == 1 || layout.offsets[at] % kBlock == 0);
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

TEST(FlatLayout, BytesOfEachStage) {
  const std::vector<FlatTensor> tensors = some_tensors();
  const auto bytes = [&](int zero_stage, bool each_microbatch) {
    return store_bytes(
        lay_out_flat(
            tensors,
            {.zero_stage = zero_stage, .num_shards = 4, .bucket_elements = 1, .each_microbatch = each_microbatch}),
        DType::kBF16);
  };
  const StoreBytes whole = bytes(1, false);
  EXPECT_EQ(whole.gathered + whole.staged, 0);
  EXPECT_EQ(bytes(2, false).grads, whole.grads);  // they are whole until the step's end
  EXPECT_EQ(bytes(2, true).grads * 4, whole.grads);
  EXPECT_EQ(bytes(1, true).grads, whole.grads);
  EXPECT_EQ(bytes(2, true).values, whole.values);
  EXPECT_EQ(bytes(3, true).values * 4, whole.values);
  EXPECT_EQ(bytes(3, true).staged, 2 * bytes(3, true).gathered);  // fp32, bf16
  EXPECT_EQ(bytes(1, true).staged, bytes(3, true).staged);
  EXPECT_EQ(bytes(3, true).sent, 0);
  for (const bool each_microbatch : {false, true}) {
    const StoreBytes narrow = store_bytes(lay_out_flat(tensors, {.zero_stage = 1,
                                                                 .num_shards = 4,
                                                                 .bucket_elements = 1,
                                                                 .each_microbatch = each_microbatch,
                                                                 .grads_in_bf16 = true}),
                                          DType::kBF16);
    EXPECT_EQ(2 * narrow.grads, whole.grads);
    EXPECT_EQ(narrow.staged, bytes(1, true).staged);
    EXPECT_EQ(2 * narrow.sent, each_microbatch ? narrow.staged : 0);
  }
}

// Padding of GPT-2's 124 million parameters on 8 data ranks: what aligned tensors and whole shares cost.
TEST(FlatLayout, PadsLittle) {
  std::vector<FlatTensor> tensors{{50304 * 768, 0, 0, true, false}, {1024 * 768, 0, 0, false, false}};
  for (size_t layer = 1; layer <= 12; ++layer) {
    for (const int64_t elements :
         {768, 768, 768 * 2304, 2304, 768 * 768, 768, 768, 768, 768 * 3072, 3072, 3072 * 768, 768}) {
      tensors.push_back({elements, 0, layer, false, false});
    }
  }
  tensors.push_back({768, 0, 13, false, false});
  tensors.push_back({768, 0, 13, false, false});
  int64_t elements = 0;
  for (const FlatTensor& tensor : tensors) {
    elements += tensor.num_elements;
  }
  const FlatLayout layout = lay_out_flat(tensors, {.zero_stage = 1, .num_shards = 8, .bucket_elements = 40000000});
  EXPECT_LT(static_cast<double>(layout.num_elements), 1.006 * static_cast<double>(elements));
}

}  // namespace
}  // namespace ashlar
