// Runs of many kinds: what their ranks hold at most is what the plan said before the first step, to the byte.
#include <gtest/gtest.h>

#include "parallel/train/memory_report.h"
#include "parallel/train/run_shape_of.h"
#include "tests/parallel/plan/planned_peak.h"
#include "tests/parallel/train/offload_support.h"

namespace ashlar {
namespace {

using namespace test;

struct Combination {
  int zero_stage = 0;
  const char* schedule = "1f1b";
  const char* recompute = "";  // --recompute-granularity
  bool bf16 = false;
  GridShape grid{};
  const char* grad_reduce = "";
  bool sequence_parallel = false;
  bool grads_in_bf16 = false;
  bool offload = false;
  bool fp16 = false;
  bool offload_params = false;

  std::string text() const {
    return fmt::format(
        "--zero-stage {} --pipeline-schedule {} --recompute-granularity '{}' --grad-reduce '{}'{}{}{}{}{} on {}",
        zero_stage, schedule, recompute, grad_reduce,
        bf16   ? " --bf16"
        : fp16 ? " --fp16"
               : "",
        sequence_parallel ? " --sequence-parallel" : "", grads_in_bf16 ? " --grad-reduce-in-bf16" : "",
        offload ? " --offload-optimizer-device nvme" : "", offload_params ? " --offload-param-device nvme" : "",
        grid.text());
  }
};

TrainOptions options_of(const Combination& combination, const ScratchDir& files) {
  TrainOptions options = model_xs();
  options.zero_stage = combination.zero_stage;
  options.pipeline_schedule = combination.schedule;
  options.recompute_granularity = combination.recompute;
  if (options.recompute_granularity == "full") {
    options.recompute_method = "uniform";
  }
  options.bf16 = combination.bf16;
  options.grad_reduce = combination.grad_reduce;
  options.sequence_parallel = combination.sequence_parallel;
  options.grad_reduce_in_bf16 = combination.grads_in_bf16;
  options.fp16 = combination.fp16;
  if (combination.offload_params) {
    return with_weights_in_files(options, files);
  }
  return combination.offload ? with_state_in_files(options, files) : options;
}

// Three steps and an evaluation, so that whatever comes and goes within a run has come and gone.
void run(const Combination& combination) {
  const ScratchDir scratch;
  const TrainOptions options = with_grid(options_of(combination, scratch), combination.grid);
  const std::vector<RankMemory> plan = plan_memory(run_shape_of(options, {}));
  const TinySource source(options.seq_length, options.vocab_size);
  run_ranks(combination.grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, options);
    for (int step = 0; step < 3; ++step) {
      train_step(training, source);
    }
    evaluate(training, source, 1);
    const std::string where = fmt::format("{}, rank {}", combination.text(), rank.world.rank());
    const RankMemory& planned = plan[static_cast<size_t>(training.grid.coordinate().pipeline)];
    expect_peak_is_planned(planned, rank.device, where);
    EXPECT_EQ(planned.disk_bytes > 0, combination.offload) << where;
    EXPECT_EQ(planned.disk_bytes, disk_bytes(training)) << where;
  });
}

TEST(PlannedPeak, IsTheMeasuredOne) {
  const std::vector<Combination> combinations = [] {
    std::vector<Combination> all;
    // Each pair of settings meets: grids of all shapes under every stage, the other three taking turns.
    const std::array<GridShape, 6> grids{GridShape{1, 1, 2}, {1, 1, 4}, {1, 2, 2}, {2, 1, 2}, {2, 2, 2}, {1, 4, 2}};
    const std::array<const char*, 3> recomputations{"", "selective", "full"};
    for (const int stage : {0, 1, 2, 3}) {
      for (size_t at = 0; at < grids.size(); ++at) {
        for (const bool bf16 : {false, true}) {
          all.push_back({stage, (at + static_cast<size_t>(stage)) % 2 == 0 ? "1f1b" : "gpipe",
                         recomputations[(at + static_cast<size_t>(stage) + (bf16 ? 1 : 0)) % 3], bf16, grids[at]});
        }
      }
    }
    all.push_back({.zero_stage = 0, .grid = {1, 2, 2}, .grad_reduce = "micro-batch"});
    all.push_back({.zero_stage = 1, .grid = {1, 2, 2}, .grad_reduce = "micro-batch"});
    all.push_back({.zero_stage = 2, .grid = {1, 2, 2}, .grad_reduce = "step"});
    all.push_back({.zero_stage = 3, .grid = {1, 2, 2}, .grad_reduce = "step"});
    // Each of the three switches under every stage, and with each of the other two.
    for (const int stage : {0, 1, 2, 3}) {
      for (const int without : {0, 1, 2, 3}) {
        all.push_back({.zero_stage = stage,
                       .schedule = (stage + without) % 2 == 0 ? "1f1b" : "gpipe",
                       .recompute = recomputations[static_cast<size_t>(stage + without) % 3],
                       .bf16 = without != 1 || stage % 2 == 0,
                       .grid = without % 2 == 0 ? GridShape{2, 1, 2} : GridShape{2, 2, 2},
                       .sequence_parallel = without != 0,
                       .grads_in_bf16 = without != 1,
                       .offload = without != 2});
      }
      all.push_back({.zero_stage = stage,
                     .recompute = recomputations[static_cast<size_t>(stage) % 3],
                     .grid = stage % 2 == 0 ? GridShape{1, 2, 2} : GridShape{2, 1, 2},
                     .sequence_parallel = stage % 2 == 1,
                     .offload = stage >= 2,
                     .fp16 = true});
    }
    all.push_back({.zero_stage = 3,
                   .grid = {2, 1, 2},
                   .sequence_parallel = true,
                   .offload = true,
                   .fp16 = true,
                   .offload_params = true});
    for (const bool bf16 : {false, true}) {
      all.push_back({.zero_stage = 3,
                     .recompute = bf16 ? "full" : "",
                     .bf16 = bf16,
                     .grid = bf16 ? GridShape{1, 2, 2} : GridShape{2, 1, 2},
                     .sequence_parallel = !bf16,
                     .offload = true,
                     .offload_params = true});
    }
    return all;
  }();
  ASSERT_GE(combinations.size(), 20u);
  for (const Combination& combination : combinations) {
    run(combination);
  }
}

}  // namespace
}  // namespace ashlar
