#include "runtime/data/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace ashlar {
namespace {

TEST(SortTokens, IsTheStableOrder) {
  for (const int32_t vocab : {1, 2, 7, 1000}) {
    std::vector<int32_t> tokens(97), order(97, -1), expected(97);
    for (size_t at = 0; at < tokens.size(); ++at) {
      tokens[at] = static_cast<int32_t>(at * 7919 % 101) % vocab;
    }
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
      return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
    });
    MicroBatch batch;
    batch.tokens = view_of(tokens.data(), {1, 97});
    batch.order = view_of(order.data(), {97});
    sort_tokens(batch);
    EXPECT_THAT(order, testing::ElementsAreArray(expected)) << vocab;
  }
}

}  // namespace
}  // namespace ashlar
