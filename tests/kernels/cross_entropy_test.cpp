#include "kernels/cross_entropy.h"

#include <limits>

#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kScale = 0.25;

// N rows of V true columns over `num_ranks` shards of `columns` each; what is beyond V is padding and holds NaN, so
// that any use of it shows.
template <typename T>
struct Split {
  Split(int64_t num_rows, int64_t vocab_size, int ranks, int64_t columns_per_rank)
      : rows(num_rows), vocab(vocab_size), num_ranks(ranks), columns(columns_per_rank) {
    logits = random_values<T>(rows * vocab, 1, 2);
    mask.assign(static_cast<size_t>(rows), 1.0f);
    const PhiloxStream random(4, RngPurpose::kTest, 0);
    for (int64_t row = 0; row < rows; ++row) {
      targets.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(row), static_cast<uint64_t>(vocab))));
    }
  }

  int64_t valid(int rank) const { return std::clamp<int64_t>(vocab - rank * columns, 0, columns); }

  // Both kernels on every rank. Fills losses (of each rank) and, when asked, dlogits [N,V].
  void run(Stream& stream, bool gradient) {
    std::vector<T> all_stats(static_cast<size_t>(num_ranks * rows * 3), static_cast<T>(kNan));
    std::vector<std::vector<T>> shards;
    for (int rank = 0; rank < num_ranks; ++rank) {
      std::vector<T>& shard = shards.emplace_back(static_cast<size_t>(rows * columns), static_cast<T>(kNan));
      for (int64_t row = 0; row < rows; ++row) {
        std::copy_n(logits.begin() + row * vocab + rank * columns, valid(rank), shard.begin() + row * columns);
      }
      cross_entropy_stats(view(all_stats, {num_ranks, rows, 3}).slice(rank, rank + 1),
                          view(std::as_const(shard), {rows, columns}), view(targets), rank * columns, valid(rank),
                          stream);
    }
    losses.assign(static_cast<size_t>(num_ranks), std::vector<T>(static_cast<size_t>(rows), static_cast<T>(kNan)));
    for (int rank = 0; rank < num_ranks; ++rank) {
      cross_entropy_finish(view(losses[static_cast<size_t>(rank)]),
                           view(shards[static_cast<size_t>(rank)], {rows, columns}),
                           view(std::as_const(all_stats), {num_ranks, rows, 3}), view(targets),
                           view(std::as_const(mask)), rank * columns, valid(rank), kScale, gradient, stream);
    }
    stream.synchronize();
    if (!gradient) {
      return;
    }
    dlogits.assign(logits.size(), T{0});
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (int64_t row = 0; row < rows; ++row) {
        const auto from = shards[static_cast<size_t>(rank)].begin() + row * columns;
        std::copy_n(from, valid(rank), dlogits.begin() + row * vocab + rank * columns);
        for (int64_t v = valid(rank); v < columns; ++v) {
          ASSERT_EQ(from[v], T{0}) << "padding column " << v << " of rank " << rank;
        }
      }
    }
  }

  int64_t rows;
  int64_t vocab;
  int num_ranks;
  int64_t columns;
  std::vector<T> logits, dlogits;
  std::vector<std::vector<T>> losses;
  std::vector<int32_t> targets;
  std::vector<float> mask;
};

template <typename T>
void expected_values(const Split<T>& split, std::vector<double>& losses, std::vector<double>& dlogits) {
  for (int64_t row = 0; row < split.rows; ++row) {
    const auto at = [&](int64_t v) {
      return static_cast<double>(split.logits[static_cast<size_t>(row * split.vocab + v)]);
    };
    const int64_t target = split.targets[static_cast<size_t>(row)];
    double sum = 0;
    for (int64_t v = 0; v < split.vocab; ++v) {
      sum += std::exp(at(v));
    }
    losses.push_back(std::log(sum) - at(target));
    for (int64_t v = 0; v < split.vocab; ++v) {
      dlogits.push_back(kScale * (std::exp(at(v)) / sum - (v == target ? 1 : 0)));
    }
  }
}

struct Case {
  int64_t vocab;
  int num_ranks;
  int64_t columns;
};
// The last two have a rank that holds nothing but padding.
const std::vector<Case> kCases = {{1, 1, 1},   {31, 1, 32},   {33, 1, 33}, {33, 2, 17},
                                  {77, 3, 32}, {257, 1, 300}, {5, 3, 4},   {65, 3, 65}};

template <typename T>
void compare_with_oracle(double tolerance) {
  for (const Case& test : kCases) {
    for (const int64_t rows : {1, 33}) {
      Split<T> split(rows, test.vocab, test.num_ranks, test.columns);
      on_queued_stream([&](Stream& stream) { split.run(stream, true); });
      std::vector<double> losses, dlogits;
      expected_values(split, losses, dlogits);
      const std::string what = fmt::format("V {} over {} ranks of {}", test.vocab, test.num_ranks, test.columns);
      expect_close(split.losses[0], losses, tolerance, what + " loss");
      expect_close(split.dlogits, dlogits, tolerance, what + " dlogits");
      for (const auto& of_rank : split.losses) {
        EXPECT_TRUE(same_bits(of_rank, split.losses[0])) << what;
      }
    }
  }
}

TEST(CrossEntropy, EqualsTheFormulaOnAnySplitInFp32) {
  compare_with_oracle<float>(2e-6);
}
TEST(CrossEntropy, EqualsTheFormulaOnAnySplitInFp64) {
  compare_with_oracle<double>(1e-13);
}

TEST(CrossEntropy, GradientIsTheDerivativeOnAnySplit) {
  for (const Case& test : kCases) {
    Split<double> split(2, test.vocab, test.num_ranks, test.columns);
    with_threads(1, [&](Stream& stream) {
      split.run(stream, true);
      expect_gradient(
          split.logits, split.dlogits,
          [&] {
            split.run(stream, false);
            return kScale * (split.losses[0][0] + split.losses[0][1]);
          },
          fmt::format("V {} over {} ranks", test.vocab, test.num_ranks));
    });
  }
}

TEST(CrossEntropy, MaskedRowsGiveExactZerosWhateverTheyHold) {
  Split<float> split(3, 70, 2, 40);
  split.mask[1] = 0.0f;
  split.targets[1] = -100;
  split.logits[70 + 3] = static_cast<float>(kNan);
  on_queued_stream([&](Stream& stream) { split.run(stream, true); });
  EXPECT_EQ(split.losses[0][1], 0.0f);
  EXPECT_GT(split.losses[0][0], 0.0f);
  for (size_t v = 0; v < 70; ++v) {
    EXPECT_EQ(split.dlogits[70 + v], 0.0f);
    EXPECT_NE(split.dlogits[v], 0.0f);
  }
}

// A NaN on one rank must reach the loss on every rank, wherever in the row it stands (vector body or tail).
TEST(CrossEntropy, NanLogitsGiveNanLossOnAllRanks) {
  for (const size_t at : {0u, 39u, 41u, 69u}) {
    Split<float> split(2, 70, 2, 40);
    split.logits[at] = static_cast<float>(kNan);
    on_queued_stream([&](Stream& stream) { split.run(stream, true); });
    for (const auto& of_rank : split.losses) {
      EXPECT_TRUE(std::isnan(of_rank[0])) << at;
      EXPECT_TRUE(std::isfinite(of_rank[1])) << at;
    }
  }
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  Split<float> split(1, 40, 2, 20);
  split.logits.assign(40, -1e4f);
  split.logits[25] = 1e4f;
  split.targets[0] = 25;
  on_queued_stream([&](Stream& stream) { split.run(stream, true); });
  EXPECT_EQ(split.losses[0][0], 0.0f);
  split.targets[0] = 3;
  on_queued_stream([&](Stream& stream) { split.run(stream, true); });
  EXPECT_EQ(split.losses[1][0], 2e4f);
}

TEST(CrossEntropy, StatsOfARankOfPaddingAreEmpty) {
  const std::vector<float> logits(2 * 8, static_cast<float>(kNan));
  const std::vector<int32_t> targets = {3, 17};
  std::vector<float> stats(6, 5.0f);
  on_queued_stream([&](Stream& stream) {
    cross_entropy_stats(view(stats), view(logits, {2, 8}), view(targets), 16, 0, stream);
  });
  const float empty = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(stats, (std::vector<float>{empty, 0, 0, empty, 0, 0}));
}

TEST(CrossEntropy, BitsDoNotDependOnThreads) {
  Split<float> one(40, 1001, 2, 512);
  Split<float> three = one;
  with_threads(1, [&](Stream& stream) { one.run(stream, true); });
  with_threads(3, [&](Stream& stream) { three.run(stream, true); });
  EXPECT_TRUE(same_bits(one.losses[0], three.losses[0]));
  EXPECT_TRUE(same_bits(one.dlogits, three.dlogits));
}

}  // namespace
}  // namespace ashlar::kernels
