// Law 1 on whole runs: every grid of 1, 2, 4 and 8 ranks trains the model that one rank trains.
#include <gtest/gtest.h>

#include <mutex>

#include "parallel/train/verify_layout.h"
#include "tests/parallel/train/tiny_run.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

struct Case {
  GridShape grid;
  std::string schedule;
  bool tied;
  bool even;
  std::string optimizer;
  double dropout = 0;

  std::string name() const {
    return fmt::format("t{}p{}d{}_{}_{}_{}_{}{}", grid.tensor, grid.pipeline, grid.data, schedule,
                       tied ? "tied" : "untied", even ? "even" : "uneven", optimizer, dropout > 0 ? "_dropout" : "");
  }
};

std::vector<GridShape> all_grids() {
  std::vector<GridShape> grids;
  for (int ranks : {1, 2, 4, 8}) {
    for (int tensor = 1; tensor <= ranks; tensor *= 2) {
      for (int pipeline = 1; tensor * pipeline <= ranks; pipeline *= 2) {
        grids.push_back({tensor, pipeline, ranks / tensor / pipeline});
      }
    }
  }
  return grids;
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name();
}

// Every combination; `stride` > 1 keeps every stride-th, rotated so that each grid meets different choices.
std::vector<Case> cases(size_t stride) {
  std::vector<Case> all;
  size_t at = 0;
  for (const GridShape& grid : all_grids()) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      for (bool tied : {true, false}) {
        for (bool even : {true, false}) {
          for (const char* optimizer : {"adam", "sgd"}) {
            const bool can_be_uneven = grid.pipeline > 1 && grid.pipeline < 8;
            if ((even || can_be_uneven) && at++ % stride == 0) {
              all.push_back({grid, schedule, tied, even, optimizer, 0});
            }
          }
        }
      }
    }
  }
  return all;
}

TrainOptions options_of(const Case& c) {
  TrainOptions options = test::tiny_options();
  options.pipeline_schedule = c.schedule;
  options.untie_embeddings_and_output_weights = !c.tied;
  options.optimizer = c.optimizer;
  options.hidden_dropout = options.attention_dropout = c.dropout;
  if (c.optimizer == "sgd") {
    options.lr = 0.1;
    options.clip_grad = 0;  // clipping would hide a wrong scale
  }
  if (!c.even) {
    options.decoder_first_pipeline_num_layers = 8 / c.grid.pipeline - 1;
  }
  return test::with_grid(options, c.grid);
}

void expect_equal_to_one_rank(const Case& c, int64_t steps = 20) {
  const TrainOptions options = options_of(c);
  const test::TinySource source(options.seq_length, options.vocab_size);
  std::mutex mutex;
  run_thread_ranks(c.grid.num_ranks(), [&](RankContext& rank) {
    const LayoutReport report = verify_layout(rank, options, source, steps);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(report.equal) << c.name() << ": " << report.first_difference;
    EXPECT_EQ(report.num_tensors, c.tied ? 100 : 101);
  });
}

class GridEquality : public testing::TestWithParam<Case> {};
TEST_P(GridEquality, TrainsLikeOneRank) {
  expect_equal_to_one_rank(GetParam());
}
std::string case_name(const testing::TestParamInfo<Case>& info) {
  return info.param.name();
}
INSTANTIATE_TEST_SUITE_P(Few, GridEquality,
                         testing::Values(Case{{2, 1, 1}, "1f1b", true, true, "adam", 0},
                                         Case{{1, 2, 2}, "gpipe", true, false, "sgd", 0},
                                         Case{{2, 2, 2}, "1f1b", false, true, "adam", 0},
                                         Case{{2, 2, 2}, "gpipe", true, false, "adam", 0.1}),
                         case_name);
TEST(GridEqualityCases, SampleMeetsEveryGrid) {
  for (const GridShape& grid : all_grids()) {
    const std::vector<Case> sample = cases(7);
    EXPECT_TRUE(std::any_of(sample.begin(), sample.end(), [&](const Case& c) { return c.grid == grid; }))
        << grid.text();
  }
}

// An odd stride meets each grid with other choices; the full product runs as the slow test.
INSTANTIATE_TEST_SUITE_P(Sample, GridEquality, testing::ValuesIn(cases(7)), case_name);

// Every grid draws the masks that one rank draws.
std::vector<Case> dropout_cases() {
  std::vector<Case> all;
  for (const GridShape& grid : all_grids()) {
    all.push_back({grid, all.size() % 2 == 0 ? "1f1b" : "gpipe", true, true, "adam", 0.1});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Dropout, GridEquality, testing::ValuesIn(dropout_cases()), case_name);

class FullGridEquality : public testing::TestWithParam<Case> {};
TEST_P(FullGridEquality, TrainsLikeOneRank) {
  expect_equal_to_one_rank(GetParam());
}
INSTANTIATE_TEST_SUITE_P(All, FullGridEquality, testing::ValuesIn(cases(1)), case_name);

}  // namespace
}  // namespace ashlar
