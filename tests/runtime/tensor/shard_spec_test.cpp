#include "runtime/tensor/shard_spec.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/base/error.h"

namespace ashlar {
namespace {

TEST(ShardSpec, ReplicatedHoldsEverythingInOneRun) {
  const ShardSpec spec = ShardSpec::replicated({3, 5});
  EXPECT_FALSE(spec.is_split());
  EXPECT_EQ(spec.local(), (Shape{3, 5}));
  EXPECT_EQ(spec.num_valid_elements(), 15);
  int runs = 0;
  spec.for_each_run([&](int64_t local, int64_t global, int64_t length) {
    ++runs;
    EXPECT_EQ(local, 0);
    EXPECT_EQ(global, 0);
    EXPECT_EQ(length, 15);
  });
  EXPECT_EQ(runs, 1);
}

TEST(ShardSpec, PaddingLiesBehindTheLastValidIndex) {
  // GPT-2's vocabulary padded to a multiple of 128 * 8.
  const Shape table{50257, 768};
  const ShardSpec last = ShardSpec::split(table, 0, 7, 8, 51200);
  EXPECT_EQ(last.local(), (Shape{6400, 768}));
  EXPECT_EQ(last.begin(), 44800);
  EXPECT_EQ(last.num_valid(), 50257 - 44800);
  EXPECT_EQ(last.num_valid_elements(), (50257 - 44800) * 768);
  const ShardSpec only_padding = ShardSpec::split({5, 2}, 0, 2, 3, 12);
  EXPECT_EQ(only_padding.num_valid(), 0);
  EXPECT_EQ(only_padding.num_valid_elements(), 0);
  only_padding.for_each_run([](int64_t, int64_t, int64_t) { FAIL() << "a run of padding"; });
}

TEST(ShardSpec, RefusesUnevenAndTooSmallPadding) {
  EXPECT_THROW(ShardSpec::split({10, 4}, 0, 0, 3), Error);
  EXPECT_THROW(ShardSpec::split({10, 4}, 0, 0, 3, 9), Error);
  EXPECT_THROW(ShardSpec::split({10, 4}, 0, 0, 3, 11), Error);
  EXPECT_NO_THROW(ShardSpec::split({10, 4}, 0, 0, 3, 12));
}

// For every split of several tensors: the runs of all parts together name every global element once, each at the place
// that its coordinates say, in ascending order, and touch no padding.
TEST(ShardSpec, RunsCoverEveryElementOnceAtItsPlace) {
  for (const Shape& global : {Shape{6}, Shape{5, 4}, Shape{4, 3, 6}, Shape{2, 3, 4, 6}, Shape{3, 0, 2}}) {
    for (int dim = 0; dim < global.num_dims(); ++dim) {
      for (const int count : {1, 2, 3}) {
        for (const int64_t extra : {0, 1, 4}) {
          const int64_t padded = (global[dim] + extra + count - 1) / count * count;
          if (padded == 0) {
            continue;
          }
          std::vector<int> seen(static_cast<size_t>(global.num_elements()));
          int64_t num_valid_elements = 0;
          for (int index = 0; index < count; ++index) {
            const ShardSpec spec = ShardSpec::split(global, dim, index, count, padded);
            const Shape local = spec.local();
            int64_t inner = 1;
            for (int d = dim + 1; d < global.num_dims(); ++d) {
              inner *= global[d];
            }
            int64_t next_local = 0;
            int64_t next_global = 0;
            int64_t covered = 0;
            spec.for_each_run([&](int64_t local_offset, int64_t global_offset, int64_t length) {
              ASSERT_GE(local_offset, next_local);
              ASSERT_GE(global_offset, next_global);
              ASSERT_GT(length, 0);
              for (int64_t i = 0; i < length; ++i) {
                const int64_t at = local_offset + i;
                const int64_t outer = at / (inner * local[dim]);
                const int64_t along = at / inner % local[dim];
                const int64_t expected = (outer * global[dim] + spec.begin() + along) * inner + at % inner;
                ASSERT_LT(along, spec.num_valid());
                ASSERT_EQ(global_offset + i, expected);
                ++seen[static_cast<size_t>(expected)];
              }
              next_local = local_offset + length;
              next_global = global_offset + length;
              covered += length;
            });
            EXPECT_EQ(covered, spec.num_valid_elements());
            num_valid_elements += spec.num_valid_elements();
          }
          EXPECT_EQ(num_valid_elements, global.num_elements());
          for (const int times : seen) {
            ASSERT_EQ(times, 1) << global.text() << " dim " << dim << " in " << count << " padded to " << padded;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ashlar
