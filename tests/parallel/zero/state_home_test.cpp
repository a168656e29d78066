// Chunks, and the homes they come from: what goes in comes out, whatever the home.
#include "parallel/zero/state_home.h"

#include <gmock/gmock.h>

#include "kernels/plain_types.h"
#include "parallel/zero/offload_config.h"
#include "tests/support/run_ranks.h"
#include "tests/support/scratch_dir.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBlock = kernels::kNormBlock;

std::vector<FlatTensor> tensors() {
  // A table, two layers of which one is larger than a bucket, and a gradient without a value.
  return {{.num_elements = 5 * kBlock + 7, .layer = 0, .is_tied = true},
          {.num_elements = 3, .layer = 1},
          {.num_elements = 9 * kBlock, .layer = 1},
          {.num_elements = kBlock - 1, .layer = 2},
          {.num_elements = 5 * kBlock + 7, .layer = 2, .is_tied = true, .shares_value = true}};
}

TEST(CutChunks, CoverWhatARankOwnsOnceAndStayInTheirLayer) {
  for (const int shards : {1, 2, 4}) {
    const Sharding sharding{.zero_stage = 1, .num_shards = shards, .bucket_elements = 6 * kBlock};
    const FlatLayout layout = lay_out_flat(tensors(), sharding);
    const std::vector<StateChunk> chunks = cut_chunks(layout, 2 * kBlock);
    int64_t at = 0;
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      EXPECT_EQ(chunks[chunk].begin, at);
      EXPECT_LE(chunks[chunk].num_elements(), 2 * kBlock);
      EXPECT_GT(chunks[chunk].num_elements(), 0);
      at = chunks[chunk].end;
      EXPECT_EQ(chunks[chunk].ends_layer, chunk + 1 == chunks.size() || chunks[chunk + 1].layer != chunks[chunk].layer);
    }
    EXPECT_EQ(at, layout.num_owned()) << shards;
    EXPECT_GT(chunks.size(), shards == 4 ? 3u : 5u);
  }
}

TEST(CutPieces, AreTheSameElementsCutWhereChunksEnd) {
  for (const int shards : {1, 2, 4}) {
    const Sharding sharding{.zero_stage = 1, .num_shards = shards, .bucket_elements = 6 * kBlock};
    const FlatLayout layout = lay_out_flat(tensors(), sharding);
    const std::vector<StateChunk> chunks = cut_chunks(layout, kBlock);
    for (int shard = 0; shard < shards; ++shard) {
      const std::vector<FlatPiece> whole = owned_pieces(layout, tensors(), shard);
      const std::vector<FlatPiece> cut = cut_pieces(whole, chunks);
      size_t at = 0;
      for (const FlatPiece& piece : whole) {
        if (tensors()[piece.tensor].shares_value) {
          continue;
        }
        int64_t begin = piece.begin;
        for (; begin < piece.end; ++at) {
          ASSERT_LT(at, cut.size());
          EXPECT_EQ(cut[at].tensor, piece.tensor);
          EXPECT_EQ(cut[at].begin, begin);
          EXPECT_EQ(cut[at].owned_begin, piece.owned_begin + begin - piece.begin);
          EXPECT_EQ(std::ranges::count_if(chunks,
                                          [&](const StateChunk& chunk) {
                                            return chunk.begin <= cut[at].owned_begin &&
                                                   cut[at].owned_begin + cut[at].num_elements() <= chunk.end;
                                          }),
                    1);
          begin = cut[at].end;
        }
      }
      EXPECT_EQ(at, cut.size());
    }
  }
}

HomeShape shape_of(std::initializer_list<int64_t> sizes) {
  HomeShape shape{.chunks = {}, .dtype = DType::kF32, .num_kinds = 3};
  int64_t at = 0;
  for (const int64_t size : sizes) {
    shape.chunks.push_back({.begin = at, .end = at + size, .layer = shape.chunks.size(), .ends_layer = true});
    at += size;
  }
  return shape;
}

void expect_numbers(StateHome& home, size_t chunk, float plus) {
  for (int kind = 0; kind < 3; ++kind) {
    const TensorView data = home.bring(chunk, kind);
    for (int64_t at = 0; at < data.num_elements(); ++at) {
      ASSERT_EQ(data.as<float>()[at], plus == 0 ? 0 : plus + static_cast<float>(chunk * 100 + kind)) << chunk;
    }
  }
}

// Fewer chunks than slots, as many, and more; walked several times as updates do.
TEST(StateHome, WhatGoesBackComesAgain) {
  const ScratchDir scratch;
  for (const HomeShape& shape :
       {shape_of({5}), shape_of({1000, 1025}), shape_of({4096, 1, 77}), shape_of({3, 5000, 1024, 1023, 9, 4096, 2})}) {
    run_thread_ranks(1, [&](RankContext& rank) {
      for (const HomeKind kind : {HomeKind::kHost, HomeKind::kFiles}) {
        const std::unique_ptr<StateHome> home =
            kind == HomeKind::kFiles
                ? make_file_home(rank.device, rank.recorder, shape, {.directory = scratch.path()}, "test")
                : make_host_home(rank.device, shape, "test");
        for (float round = 0; round < 4; ++round) {
          home->expect(0);
          for (size_t chunk = 0; chunk < shape.chunks.size(); ++chunk) {
            if (chunk + 1 < shape.chunks.size()) {
              home->expect(chunk + 1);
            }
            expect_numbers(*home, chunk, round);
            for (int at = 0; at < 3; ++at) {
              const TensorView data = home->bring(chunk, at);
              std::fill_n(data.as<float>(), data.num_elements(), round + 1 + static_cast<float>(chunk * 100 + at));
            }
            home->put_back(chunk);
          }
        }
        for (size_t chunk = shape.chunks.size(); chunk-- > 0;) {
          expect_numbers(*home, chunk, 4);
        }
      }
    });
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(StateHome, FilesTakeTheDiskThatTheirBytesSay) {
  const HomeShape shape = shape_of({5000, 1});  // 3 kinds: 5000 fp32 are 5 blocks of 4096 bytes, 1 is one
  const HomeBytes bytes = home_bytes(HomeKind::kFiles, shape);
  EXPECT_EQ(bytes.disk, 3 * (5 + 1) * 4096);
  EXPECT_EQ(bytes.host, 3 * 3 * 5 * 4096 + 4096);
  EXPECT_EQ(home_bytes(HomeKind::kHost, shape), (HomeBytes{.host = 3 * 5001 * 4}));
}

TEST(StateHome, LastWriteThatFailsIsAnErrorOfTheFlush) {
  const ScratchDir scratch;
  run_thread_ranks(1, [&](RankContext& rank) {
    const auto home = make_file_home(rank.device, rank.recorder, shape_of({4096}),
                                     {.directory = scratch.path(), .faults = {.fail_after = 0}}, "test");
    home->bring(0, 0);
    home->put_back(0);
    EXPECT_THROW(home->flush(), Error);
  });
}

TEST(StateHome, FullDiskIsAnErrorOfALaterCall) {
  const ScratchDir scratch;
  run_thread_ranks(1, [&](RankContext& rank) {
    const HomeShape shape = shape_of({4096, 4096, 4096, 4096, 4096});
    const auto home = make_file_home(rank.device, rank.recorder, shape,
                                     {.directory = scratch.path(), .faults = {.fail_after = 3 * 4096 * 4}}, "test");
    std::string text;
    try {
      for (size_t chunk = 0; chunk < shape.chunks.size(); ++chunk) {
        home->bring(chunk, 0);
        home->put_back(chunk);
      }
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_THAT(text, AllOf(HasSubstr(scratch.path().string()), HasSubstr("cannot write"), HasSubstr("offset 49152"),
                            HasSubstr("No space left")));
  });
}

}  // namespace
}  // namespace ashlar
