// What only thread ranks can show: errors on one rank, queued streams, agreement, and no allocation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

TEST(ThreadRanks, FirstErrorIsRethrownAndPeersStop) {
  try {
    run_ranks(3, [](RankContext& rank) {
      if (rank.world.rank() == 1) {
        throw Error(ErrorCode::kData, "bad file");
      }
      rank.world.barrier();
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
    EXPECT_STREQ(error.what(), "bad file");
  }
}

TEST(ThreadRanks, PeersHearWhoEndedTheJob) {
  std::string heard;
  try {
    run_ranks(2, [&](RankContext& rank) {
      if (rank.world.rank() == 1) {
        throw Error(ErrorCode::kNumerics, "loss is not finite");
      }
      try {
        rank.world.barrier();
      } catch (const Error& error) {
        heard = error.what();
        EXPECT_EQ(error.code(), ErrorCode::kNumerics);
        throw;
      }
    });
  } catch (const Error&) {
  }
  EXPECT_THAT(heard, testing::HasSubstr("rank 1 ended the job (loss is not finite)"));
  EXPECT_THAT(heard, testing::HasSubstr("barrier #1 of \"world\""));
}

TEST(ThreadRanks, QueuedStreamsAreWaitedFor) {
  run_ranks_queued(2, [](RankContext& rank) {
    const std::unique_ptr<Stream> stream = rank.device.create_stream();
    constexpr size_t kCount = 1 << 17;
    std::vector<float> source(kCount, 1.0f + static_cast<float>(rank.world.rank()));
    std::vector<float> x(kCount, -1.0f);
    stream->copy(x.data(), source.data(), kCount * sizeof(float));
    rank.world.all_reduce(view_of(x.data(), {kCount}), ReduceOp::kSum, *stream).wait(*stream);
    std::vector<float> result(kCount);
    stream->copy(result.data(), x.data(), kCount * sizeof(float));
    stream->synchronize();
    EXPECT_THAT(result, testing::Each(3.0f));
  });
}

TEST(Agree, OneRanksMistakeIsEverybodysErrorAndNamesIt) {
  run_ranks(3, [](RankContext& rank) {
    try {
      agree(rank.world, [&] { REQUIRE(rank.world.rank() != 2, ErrorCode::kCheckpoint, "slice {} is missing", 7); });
      ADD_FAILURE() << "no error on rank " << rank.world.rank();
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpoint);
      EXPECT_STREQ(error.what(), "rank 2: slice 7 is missing");
    }
    rank.world.barrier();  // the group goes on
  });
}

TEST(Agree, TheSameMistakeOnAllRanksIsSaidOnce) {
  run_ranks(2, [](RankContext& rank) {
    try {
      agree(rank.world, [] { throw Error(ErrorCode::kUsage, "--micro-batch-size 0"); });
      ADD_FAILURE() << "no error";
    } catch (const AgreedError& error) {
      EXPECT_STREQ(error.what(), "--micro-batch-size 0");
    }
    agree(rank.world, [] {});
  });
}

TEST(Agree, DifferentMistakesAreAllNamed) {
  run_ranks(4, [](RankContext& rank) {
    try {
      agree(rank.world,
            [&] { REQUIRE(rank.world.rank() == 3, ErrorCode::kData, "{}", rank.world.rank() == 1 ? "one" : "other"); });
      ADD_FAILURE() << "no error";
    } catch (const AgreedError& error) {
      EXPECT_STREQ(error.what(), "ranks 0, 2: other\nrank 1: one");
    }
  });
}

TEST(AllGatherText, TextsOfDifferentLengthComeBackByRank) {
  run_ranks(3, [](RankContext& rank) {
    const std::string mine(static_cast<size_t>(rank.world.rank()) * 3, static_cast<char>('a' + rank.world.rank()));
    EXPECT_THAT(all_gather_text(rank.world, mine), testing::ElementsAre("", "bbb", "cccccc"));
  });
}

}  // namespace
}  // namespace ashlar
