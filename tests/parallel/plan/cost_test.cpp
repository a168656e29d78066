// Parameters, arithmetic and time against numbers that were worked out by hand or published.
#include "parallel/plan/cost.h"

#include <gtest/gtest.h>

#include <numeric>

#include "parallel/plan/plan_text.h"

namespace ashlar {
namespace {

RunShape gpt2_124m() {
  RunShape shape;
  shape.config = {.num_layers = 12,
                  .width = 768,
                  .num_heads = 12,
                  .ffn = 3072,
                  .max_positions = 1024,
                  .vocab = 50257,
                  .padded_vocab = 50304};
  shape.layers_per_stage = {12};
  shape.batch = {4, 1024};
  return shape;
}

RunShape on_stages(RunShape shape, std::vector<int64_t> layers, int num_microbatches) {
  shape.grid.pipeline = static_cast<int>(layers.size());
  shape.layers_per_stage = std::move(layers);
  shape.num_microbatches = num_microbatches;
  return shape;
}

// 7B parameters, 2T tokens, 1024 ranks of 312 TFLOP/s at 45 %.
TEST(PlanCost, DaysOfSevenBillionParameters) {
  const double flops = flops_6nd(7e9, 2e12);
  EXPECT_DOUBLE_EQ(flops, 8.4e22);
  EXPECT_NEAR(training_days(flops, 1024, 312e12, 0.45), 6.76, 0.005);
  EXPECT_NEAR(training_days(flops, 512, 312e12, 0.9), 6.76, 0.005);
}

TEST(PlanCost, FlopsAreThoseThatMetricsReport) {
  const RunShape shape = gpt2_124m();
  for (const FlopFormula formula : {FlopFormula::kCausal, FlopFormula::kFullAttention}) {
    EXPECT_EQ(training_flops(shape, 3, formula), 3 * static_cast<double>(flops_per_token(shape.config, 1024, formula)));
  }
  // 12 blocks of 12 C^2 weights and the logits, 6 FLOPs each; 6 L C T of attention.
  EXPECT_EQ(training_flops(shape, 1, FlopFormula::kCausal),
            6.0 * (12 * 12 * 768 * 768 + 50257 * 768) + 6.0 * 12 * 768 * 1024);
}

TEST(PlanCost, ParametersOfRanks) {
  RunShape shape = gpt2_124m();
  // GPT-2's 124439808, and the padding of its table.
  EXPECT_EQ(parameters_per_rank(shape), std::vector<int64_t>{124439808 + (50304 - 50257) * 768});
  shape.config.tied = false;
  EXPECT_EQ(parameters_per_rank(shape), std::vector<int64_t>{124439808 + (2 * 50304 - 50257) * 768});
  // Two stages of a tied model hold the table twice.
  shape = on_stages(gpt2_124m(), {5, 7}, 4);
  const std::vector<int64_t> stages = parameters_per_rank(shape);
  EXPECT_EQ(std::accumulate(stages.begin(), stages.end(), int64_t{0}), 124439808 + (2 * 50304 - 50257) * 768);
  EXPECT_EQ(stages[1] - stages[0], 2 * (12 * 768 * 768 + 13 * 768) + 2 * 768 - 1024 * 768);
  // Halves of split tensors; norms, positions and the biases behind a sum whole.
  shape = gpt2_124m();
  shape.grid.tensor = 2;
  const int64_t whole = 12 * (4 * 768 + 2 * 768) + 2 * 768 + 1024 * 768;
  EXPECT_EQ(parameters_per_rank(shape)[0], whole + (124439808 + (50304 - 50257) * 768 - whole) / 2);
}

TEST(PlanCost, BubbleOfKnownSchedules) {
  for (const char* schedule : {"1f1b", "gpipe"}) {
    for (const int stages : {1, 2, 4, 8}) {
      for (const int num_microbatches : {1, 2, 8, 32}) {
        RunShape shape = on_stages(gpt2_124m(), std::vector<int64_t>(static_cast<size_t>(stages), 2), num_microbatches);
        shape.schedule = schedule;
        EXPECT_NEAR(bubble_fraction(shape), (stages - 1.0) / (num_microbatches + stages - 1.0), 1e-12)
            << schedule << " " << stages << " " << num_microbatches;
      }
    }
  }
}

TEST(PlanText, Numbers) {
  EXPECT_EQ(count_text(834432), "834432");
  EXPECT_EQ(count_text(124439808), "124.4 M");
  EXPECT_EQ(count_text(2e12), "2 T");
  EXPECT_EQ(memory_text(10'530'000'000), "10.53 GB");
  EXPECT_EQ(memory_text(8'193'000), "8.19 MB");
  EXPECT_EQ(memory_text(512), "0.51 kB");
}

TEST(PlanText, FitsOnAScreenWhateverTheGrid) {
  const auto check = [](const RunShape& shape, const std::string& expected) {
    const std::string text = plan_text(shape, {.num_tokens = 2e12, .peak_flops = 312e12, .mfu = 0.45});
    size_t num_lines = 0;
    for (size_t start = 0; start < text.size(); ++num_lines) {
      const size_t end = text.find('\n', start);
      EXPECT_LE(end - start, 120u) << text.substr(start, end - start);
      start = end + 1;
    }
    EXPECT_LE(num_lines, 32u) << text;
    EXPECT_NE(text.find(expected), std::string::npos) << text;
  };
  RunShape shape = gpt2_124m();
  check(shape, "traffic: none");
  shape = on_stages(gpt2_124m(), {3, 3, 3, 3}, 8);
  shape.grid.tensor = 4;
  shape.grid.data = 8;
  check(shape, "6 x parameters x tokens = 1.49e+21 FLOPs: 0.962 days");
  shape = on_stages(gpt2_124m(), std::vector<int64_t>(64, 1), 128);
  shape.config.num_layers = 64;
  check(shape, "stage 63");
}

}  // namespace
}  // namespace ashlar
