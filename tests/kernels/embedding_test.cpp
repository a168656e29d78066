#include "kernels/embedding.h"

#include "tests/kernels/pointwise_support.h"

namespace ashlar::kernels {
namespace {

std::vector<int32_t> random_tokens(int64_t n, uint64_t vocab) {
  const PhiloxStream random(3, RngPurpose::kTest, 0);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(i), vocab)));
  }
  return tokens;
}

// A table of 10 rows in shards of 4 (the last one has 2 rows of padding): each token is in one shard, and the shards'
// outputs add up to the whole lookup.
TEST(Embedding, ShardsAddUpToTheWholeLookup) {
  for (const int64_t columns : {1, 31, 33, 257}) {
    for (const int64_t n : {1, 33}) {
      const auto table = random_values<float>(12 * columns, 1);
      const auto tokens = random_tokens(n, 10);
      std::vector<float> sum(static_cast<size_t>(n * columns));
      on_queued_stream([&](Stream& stream) {
        for (int64_t begin = 0; begin < 12; begin += 4) {
          std::vector<float> y(sum.size(), 99.0f);
          embedding_forward(view(y), view(tokens), view(table, {12, columns}).slice(begin, begin + 4), begin,
                            std::min<int64_t>(4, 10 - begin), stream);
          stream.synchronize();
          for (size_t i = 0; i < y.size(); ++i) {
            sum[i] += y[i];
          }
        }
      });
      for (int64_t i = 0; i < n * columns; ++i) {
        const int64_t row = tokens[static_cast<size_t>(i / columns)];
        ASSERT_EQ(sum[static_cast<size_t>(i)], table[static_cast<size_t>(row * columns + i % columns)]);
      }
    }
  }
}

TEST(Embedding, PaddingAndForeignTokensGiveZerosAndNoGradient) {
  const std::vector<int32_t> tokens = {3, 4, 6, 7, 100, -1};  // this shard holds 4, 5 and 6; row 7 is padding
  const auto table = random_values<float>(4 * 5, 1);
  const auto dy = random_values<float>(6 * 5, 2);
  std::vector<float> y(6 * 5, 9.0f), dtable(4 * 5);
  on_queued_stream([&](Stream& stream) {
    embedding_forward(view(y), view(tokens), view(table, {4, 5}), 4, 3, stream);
    embedding_backward(view(dtable, {4, 5}), view(dy), view(tokens), {}, 4, 3, stream);
  });
  for (size_t i = 0; i < 30; ++i) {
    const size_t n = i / 5;
    const float expected = n == 1 ? table[i % 5] : n == 2 ? table[2 * 5 + i % 5] : 0.0f;
    EXPECT_EQ(y[i], expected) << i;
  }
  for (size_t i = 0; i < 20; ++i) {
    const float expected = i < 5 ? dy[5 + i] : i / 5 == 2 ? dy[10 + i % 5] : 0.0f;
    EXPECT_EQ(dtable[i], expected) << i;
  }
}

TEST(Embedding, BackwardAddsInAscendingOrderOnAnyNumberOfThreads) {
  const int64_t columns = 600;  // three blocks of columns
  const int64_t n = 200;
  const auto tokens = random_tokens(n, 3);
  const auto dy = random_values<float>(n * columns, 1);
  const auto start = random_values<float>(3 * columns, 2);
  std::vector<float> expected = start;
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t row = static_cast<size_t>(tokens[i / static_cast<size_t>(columns)]);
    expected[row * static_cast<size_t>(columns) + i % static_cast<size_t>(columns)] += dy[i];
  }
  for (const int threads : {1, 2, 3}) {
    std::vector<float> dtable = start;
    with_threads(threads, [&](Stream& stream) {
      embedding_backward(view(dtable, {3, columns}), view(dy), view(tokens), {}, 0, 3, stream);
    });
    EXPECT_TRUE(same_bits(dtable, expected)) << threads << " threads";
  }
}

TEST(Embedding, BackwardIsTheDerivative) {
  const auto tokens = random_tokens(13, 5);
  auto table = random_values<double>(5 * 7, 1);
  const auto dy = random_values<double>(13 * 7, 2);
  std::vector<double> y(dy.size()), dtable(table.size());
  with_threads(1, [&](Stream& stream) {
    embedding_backward(view(dtable, {5, 7}), view(dy), view(tokens), {}, 0, 5, stream);
    expect_gradient(
        table, dtable,
        [&] {
          embedding_forward(view(y), view(tokens), view(std::as_const(table), {5, 7}), 0, 5, stream);
          return dot(y, dy);
        },
        "dtable");
  });
}

TEST(Position, AddsTheRowOfEachPlace) {
  for (const int64_t columns : {1, 33, 257}) {
    const auto table = random_values<float>(6 * columns, 1);
    const auto before = random_values<float>(3 * 4 * columns, 2);
    auto y = before;
    on_queued_stream([&](Stream& stream) {
      position_forward(view(y, {3, 4, columns}), view(table, {6, columns}), {0, 4}, stream);
    });
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(y[i], before[i] + table[i % static_cast<size_t>(4 * columns)]);
    }
  }
}

TEST(Position, BackwardIsTheDerivative) {
  auto table = random_values<double>(6 * 3, 1);
  const auto dy = random_values<double>(5 * 4 * 3, 2);
  std::vector<double> y(dy.size()), dtable(table.size(), 77.0);
  with_threads(1, [&](Stream& stream) {
    position_backward(view(dtable, {6, 3}), view(dy, {5, 4, 3}), {0, 4}, Write::kOverwrite, stream);
    expect_gradient(
        table, dtable,
        [&] {
          std::fill(y.begin(), y.end(), 0.0);
          position_forward(view(y, {5, 4, 3}), view(std::as_const(table), {6, 3}), {0, 4}, stream);
          return dot(y, dy);
        },
        "dtable");
  });
}

TEST(Position, BackwardOverwritesOrAddsOnAnyNumberOfThreads) {
  const int64_t columns = 300;
  const auto dy = random_values<float>(3 * 20 * columns, 1);
  const auto start = random_values<float>(21 * columns, 2);
  std::vector<float> sum(start.size());
  for (size_t i = 0; i < dy.size(); ++i) {
    sum[i % static_cast<size_t>(20 * columns)] += dy[i];
  }
  std::vector<float> added = sum;
  for (size_t i = 0; i < added.size(); ++i) {
    added[i] = start[i] + sum[i];
  }
  for (const int threads : {1, 3}) {
    std::vector<float> overwritten = start, accumulated = start;
    with_threads(threads, [&](Stream& stream) {
      position_backward(view(overwritten, {21, columns}), view(dy, {3, 20, columns}), {0, 20}, Write::kOverwrite,
                        stream);
      position_backward(view(accumulated, {21, columns}), view(dy, {3, 20, columns}), {0, 20}, Write::kAdd, stream);
    });
    EXPECT_TRUE(same_bits(overwritten, sum));  // row 20 is beyond the sequence: zero
    EXPECT_TRUE(same_bits(accumulated, added));
  }
}

// A rank's rows of a micro-batch, flattened: together the parts are what the whole batch makes, and a position that a
// part does not have is zero, or stays as it was.
TEST(Position, PartsOfTheRowsMakeTheWhole) {
  const int64_t columns = 5, length = 6, rows = 3 * length;
  const auto table = random_values<double>(8 * columns, 1);
  const auto y = random_values<double>(rows * columns, 2);
  auto whole = y;
  std::vector<double> whole_gradient(table.size()), sum(table.size());
  with_threads(1, [&](Stream& stream) {
    position_forward(view(whole, {3, length, columns}), view(table, {8, columns}), {0, length}, stream);
    position_backward(view(whole_gradient, {8, columns}), view(y, {3, length, columns}), {0, length}, Write::kOverwrite,
                      stream);
  });
  for (const int64_t part : {2, 3, 9}) {  // less than a sample, and one and a half
    auto cut = y;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t begin = 0; begin < rows; begin += part) {
      std::vector<double> overwritten(table.size(), 77.0), added(table.size(), 77.0);
      with_threads(1, [&](Stream& stream) {
        const TensorView own = view(cut, {rows, columns}).slice(begin, begin + part);
        const ConstTensorView dy = view(y, {rows, columns}).slice(begin, begin + part);
        position_forward(own, view(table, {8, columns}), {begin, length}, stream);
        position_backward(view(overwritten, {8, columns}), dy, {begin, length}, Write::kOverwrite, stream);
        position_backward(view(added, {8, columns}), dy, {begin, length}, Write::kAdd, stream);
      });
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += overwritten[i];
        ASSERT_EQ(added[i], 77.0 + overwritten[i]);
        const int64_t t = static_cast<int64_t>(i) / columns;
        const bool has = t < length && (t + length - begin % length) % length < part;
        ASSERT_EQ(overwritten[i] != 0, has) << "rows from " << begin << " position " << t;
      }
    }
    EXPECT_TRUE(same_bits(cut, whole)) << part;
    for (size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(sum[i], whole_gradient[i], 1e-14);
    }
  }
}

TEST(Position, RefusesASequenceLongerThanTheTable) {
  std::vector<float> y(5 * 2), table(4 * 2);
  EXPECT_THROW(with_threads(1,
                            [&](Stream& stream) {
                              position_forward(view(y, {1, 5, 2}), view(table, {4, 2}), {0, 5}, stream);
                            }),
               Error);
}

}  // namespace
}  // namespace ashlar::kernels
