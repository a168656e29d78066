// Activations that are made again are the activations that were thrown away: no bit of a run changes.
#include <gtest/gtest.h>

#include "tests/parallel/train/run_trace.h"

namespace ashlar {
namespace {

using namespace test;

TrainOptions full(TrainOptions options, const std::string& method, int64_t num_layers) {
  options.recompute_granularity = "full";
  options.recompute_method = method;
  options.recompute_num_layers = num_layers;
  return options;
}

TrainOptions selective(TrainOptions options, std::vector<std::string> modules = {}) {
  options.recompute_granularity = "selective";
  options.recompute_modules = std::move(modules);
  return options;
}

TrainOptions with_dropout() {
  TrainOptions options = model_xs();
  options.hidden_dropout = options.attention_dropout = 0.1;
  return options;
}

void expect_no_change(const TrainOptions& plain, const std::vector<TrainOptions>& others, const GridShape& grid,
                      int64_t steps) {
  const TinySource source(plain.seq_length, plain.vocab_size);
  const RunTrace expected = run_steps(plain, grid, source, steps);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
  for (const TrainOptions& other : others) {
    EXPECT_TRUE(run_steps(other, grid, source, steps).same_bits(expected))
        << grid.text() << " " << other.pipeline_schedule << " " << other.recompute_granularity << " "
        << other.recompute_method << " " << other.recompute_num_layers << " of " << other.num_layers << " modules "
        << fmt::format("{}", fmt::join(other.recompute_modules, ","));
  }
}

TEST(FewRecompute, ChangesNoBit) {
  TrainOptions options = with_dropout();
  expect_no_change(options, {full(options, "uniform", 3), full(options, "block", 2), selective(options)}, {1, 1, 1}, 3);
  options.bf16 = true;
  expect_no_change(options, {full(options, "uniform", 2), selective(options, {"core_attn"})}, {2, 2, 1}, 3);
}

TEST(Recompute, ChangesNoBitOfAnyKind) {
  for (const bool dropout : {false, true}) {
    for (const bool bf16 : {false, true}) {
      for (const char* schedule : {"1f1b", "gpipe"}) {
        TrainOptions options = dropout ? with_dropout() : model_xs();
        options.bf16 = bf16;
        options.pipeline_schedule = schedule;
        std::vector<TrainOptions> others{selective(options), selective(options, {"core_attn"}),
                                         selective(options, {"layernorm"}), selective(options, {"mlp_act"}),
                                         selective(options, {"core_attn", "layernorm", "mlp_act"})};
        for (const char* method : {"uniform", "block"}) {
          for (const int64_t layers : {1, 2, 3, 4}) {
            others.push_back(full(options, method, layers));
          }
        }
        expect_no_change(options, others, {1, 1, 1}, 10);
        std::erase_if(others, [](const TrainOptions& other) { return other.recompute_num_layers > 2; });
        expect_no_change(options, others, {2, 2, 1}, 10);
        expect_no_change(options, {full(options, "uniform", 1), selective(options)}, {1, 4, 2}, 10);
      }
    }
  }
}

// The masks are drawn, and anew in each step.
TEST(FewRecompute, DropoutIsThere) {
  const TrainOptions options = with_dropout();
  const TinySource source(options.seq_length, options.vocab_size);
  const RunTrace dropped = run_steps(options, {1, 1, 1}, source, 2);
  EXPECT_FALSE(run_steps(model_xs(), {1, 1, 1}, source, 2).same_bits(dropped));
  TrainOptions other = options;
  other.attention_dropout = 0;
  EXPECT_FALSE(run_steps(other, {1, 1, 1}, source, 2).same_bits(dropped));
}

}  // namespace
}  // namespace ashlar
