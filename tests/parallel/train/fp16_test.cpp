// fp16 and its loss scale: an overflow on one rank is a skipped step on all, whatever the grid; nothing that a skipped
// step must leave alone moves; and all of it comes back from a checkpoint.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "parallel/train/test_faults.h"
#include "parallel/train/verify_layout.h"
#include "runtime/checkpoint/layout.h"
#include "runtime/checkpoint/manifest.h"
#include "tests/parallel/train/offload_support.h"

namespace ashlar {
namespace {

using namespace test;

TrainOptions in_fp16(TrainOptions options, double initial_scale) {
  options.fp16 = true;
  options.initial_loss_scale = initial_scale;
  return options;
}

TinySource source_of(const TrainOptions& options) {
  return TinySource(options.seq_length, options.vocab_size);
}

// What one rank knows behind a step.
struct Line {
  double loss = 0, grad_norm = 0, learning_rate = 0, loss_scale = 0;
  StepOutcome outcome = StepOutcome::kUpdated;
  int64_t iteration = 0, samples = 0, updates = 0, skipped = 0;
  uint64_t weights = 0, state = 0;  // hashes

  // Norms of a skipped step are NaN or infinite.
  bool operator==(const Line& other) const {
    const auto key = [](const Line& l) {
      return std::tuple(l.loss, std::isfinite(l.grad_norm) ? l.grad_norm : -1, l.learning_rate, l.loss_scale, l.outcome,
                        l.iteration, l.samples, l.updates, l.skipped, l.weights, l.state);
    };
    return key(*this) == key(other);
  }
};
using Lines = std::vector<Line>;

uint64_t hash_of_state(Training& training) {
  return hash_of(gather_logical(training, TensorKind::kValue)) ^
         3 * hash_of(gather_logical(training, TensorKind::kFirstMoment)) ^
         5 * hash_of(gather_logical(training, TensorKind::kSecondMoment));
}

Line line_behind(Training& training, const StepResult& result) {
  return {.loss = result.loss,
          .grad_norm = result.grad_norm,
          .learning_rate = result.learning_rate,
          .loss_scale = result.loss_scale,
          .outcome = result.outcome,
          .iteration = training.state.iteration,
          .samples = training.state.consumed_samples,
          .updates = training.optimizer.num_updates(),
          .skipped = training.state.num_skipped,
          .weights = training.sync.values().hash_values(),
          .state = hash_of_state(training)};
}

struct RunPart {
  std::string load{}, save{};
  int64_t save_at = 0;  // 0: behind the last step
};

// By world rank. The faults are those of the options.
std::vector<Lines> run_lines(const TrainOptions& options, const GridShape& grid, int64_t steps,
                             const RunPart& part = {}) {
  std::vector<Lines> all(static_cast<size_t>(grid.num_ranks()));
  const TrainOptions resolved = with_grid(options, grid);
  const TinySource source = source_of(options);
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, resolved);
    TestFaults faults(resolved);
    faults.install(training);
    if (!part.load.empty()) {
      REQUIRE(load_training(training, part.load, 1), ErrorCode::kCheckpoint, "nothing to load");
    }
    for (int64_t step = 1; step <= steps; ++step) {
      const StepResult result = train_step(training, source);
      all[static_cast<size_t>(rank.world.rank())].push_back(line_behind(training, result));
      if (!part.save.empty() && step == (part.save_at > 0 ? part.save_at : steps)) {
        save_training(training, part.save, 1);
      }
    }
    if (!part.save.empty() && steps == 0) {
      save_training(training, part.save, 1);
    }
  });
  return all;
}

// One infinity in a gradient of one rank at step 3.
void check_overflow_on(const GridShape& grid, int zero_stage, const std::string& tensor, int bad_rank,
                       bool sequence_parallel = false) {
  SCOPED_TRACE(fmt::format("{} zero {} {} on rank {}", grid.text(), zero_stage, tensor, bad_rank));
  TrainOptions options = in_fp16(model_xs(), 4096);
  options.sequence_parallel = sequence_parallel;
  options.hysteresis = 1;
  options.zero_stage = zero_stage;
  options.test_overflow = fmt::format("rank={},step=3", bad_rank);
  if (!tensor.empty()) {
    options.test_overflow += ",tensor=" + tensor;
  }
  const std::vector<Lines> ranks = run_lines(options, grid, 4);
  for (const Lines& lines : ranks) {
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_EQ(lines[2].outcome, StepOutcome::kSkipped);
    EXPECT_TRUE(std::isfinite(lines[2].loss));
    EXPECT_FALSE(std::isfinite(lines[2].grad_norm));
    EXPECT_EQ(lines[2].loss_scale, 2048);
    EXPECT_EQ(lines[2].weights, lines[1].weights);
    EXPECT_EQ(lines[2].state, lines[1].state);
    EXPECT_EQ(lines[2].updates, 2);
    EXPECT_EQ(lines[2].skipped, 1);
    EXPECT_EQ(lines[2].iteration, 3);
    EXPECT_EQ(lines[2].samples, 3 * options.global_batch_size);
    EXPECT_EQ(lines[3].outcome, StepOutcome::kUpdated);
    EXPECT_EQ(lines[3].loss_scale, 2048);
    EXPECT_EQ(lines[3].updates, 3);
    EXPECT_NE(lines[3].weights, lines[2].weights);
    EXPECT_EQ(lines[3].state, ranks[0][3].state);
  }
}

TEST(FewFp16, OverflowOnOneRankSkipsTheStepOnAll) {
  for (int rank = 0; rank < 4; ++rank) {
    check_overflow_on({2, 2, 1}, 0, "", rank);
  }
  for (int rank = 0; rank < 2; ++rank) {
    check_overflow_on({1, 1, 2}, 0, "", rank);
    check_overflow_on({1, 1, 2}, 1, "", rank);
    check_overflow_on({1, 1, 2}, 3, "", rank);
  }
}
TEST(Fp16, OverflowOfAnyKindOfTensorSkipsTheStepOnAll) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    for (int rank = 0; rank < 4; ++rank) {
      check_overflow_on({1, 2, 2}, zero_stage, "", rank);
      check_overflow_on({2, 1, 2}, zero_stage, "h.1.attn.c_attn.weight", rank);
      check_overflow_on({2, 1, 2}, zero_stage, "wte.weight", rank);
    }
    check_overflow_on({2, 1, 2}, zero_stage, "h.1.ln_1.bias", 0);
    check_overflow_on({1, 2, 2}, zero_stage, "ln_f.weight", 2);
    check_overflow_on({1, 2, 2}, zero_stage, "wte.weight", 3);  // the copy on the last stage
  }
}
// What a tensor rank makes of its own rows is a part of a sum, so that each of them may overflow alone.
TEST(FewFp16, OverflowInTheRowsOfOneTensorRankSkipsTheStepOnAll) {
  for (int rank = 0; rank < 2; ++rank) {
    check_overflow_on({2, 1, 1}, 0, "h.1.ln_1.bias", rank, true);
    check_overflow_on({2, 1, 1}, 0, "h.1.attn.c_attn.weight", rank, true);
  }
}
TEST(Fp16, OverflowInTheRowsOfOneTensorRankSkipsTheStepOnAll) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    for (int rank = 0; rank < 4; ++rank) {
      check_overflow_on({2, 1, 2}, zero_stage, "h.1.ln_1.bias", rank, true);
      check_overflow_on({2, 1, 2}, zero_stage, "wpe.weight", rank, true);
    }
    check_overflow_on({2, 2, 2}, zero_stage, "ln_f.weight", 7, true);
  }
}
TEST(FewFp16, AFaultInATensorThatIsNotThereIsRefused) {
  TrainOptions options = in_fp16(model_xs(), 4096);
  options.test_overflow = "rank=1,step=1,tensor=h.0.ln_1.bias";  // a replica: never looked at
  EXPECT_THROW(run_lines(options, {2, 1, 1}, 1), Error);
  options.test_overflow = "rank=0,step=1,tensor=h.9.ln_1.bias";
  EXPECT_THROW(run_lines(options, {2, 1, 1}, 1), Error);
}

// The scale comes down by overflows that nobody planted; the warm-up waits for the first update.
void check_warm_up(const GridShape& grid) {
  TrainOptions options = in_fp16(model_xs(), kDefaultInitialLossScale);
  options.lr_warmup_iters = 10;
  const std::vector<Lines> ranks = run_lines(options, grid, 24);
  const Lines& lines = ranks[0];
  int64_t skipped = 0, updates = 0;
  double scale = kDefaultInitialLossScale;
  for (size_t at = 0; at < lines.size(); ++at) {
    const bool skip = lines[at].outcome == StepOutcome::kSkipped;
    skipped += skip ? 1 : 0;
    updates += skip ? 0 : 1;
    scale /= skip && skipped >= 2 ? 2 : 1;  // hysteresis 2: the first is forgiven
    EXPECT_EQ(lines[at].skipped, skipped);
    EXPECT_EQ(lines[at].updates, updates);
    EXPECT_EQ(lines[at].loss_scale, scale);
    EXPECT_EQ(lines[at].iteration, static_cast<int64_t>(at) + 1);
    EXPECT_EQ(lines[at].samples, static_cast<int64_t>(at + 1) * options.global_batch_size);
    // The rate that the update used, or that the next one will use.
    EXPECT_DOUBLE_EQ(lines[at].learning_rate,
                     options.lr * static_cast<double>(std::min<int64_t>(updates + (skip ? 1 : 0), 10)) / 10)
        << at;
    if (skip && at > 0) {
      EXPECT_EQ(lines[at].state, lines[at - 1].state) << at;
    }
  }
  EXPECT_GE(skipped, 4);
  EXPECT_GE(updates, 3);
  EXPECT_EQ(lines.back().outcome, StepOutcome::kUpdated);
  for (const Lines& others : ranks) {
    ASSERT_EQ(others.size(), lines.size());
    for (size_t at = 0; at < lines.size(); ++at) {
      EXPECT_EQ(others[at].loss_scale, lines[at].loss_scale);
      EXPECT_EQ(others[at].learning_rate, lines[at].learning_rate);
      EXPECT_EQ(others[at].outcome, lines[at].outcome);
      EXPECT_EQ(others[at].state, lines[at].state);
    }
  }
}

TEST(FewFp16, WarmUpWaitsForTheFirstUpdate) {
  check_warm_up({1, 1, 1});
  check_warm_up({1, 1, 2});
}

nlohmann::json saved_state(const std::string& directory, int64_t iteration) {
  return read_manifest(CheckpointLayout(directory).set(iteration), iteration).state;
}

// Window 4 from 1024: the doubling lies behind the checkpoint, in front of it, or the steps since are in it.
void check_resume(const GridShape& grid, int zero_stage, const std::string& fault) {
  SCOPED_TRACE(fmt::format("{} zero {} {}", grid.text(), zero_stage, fault));
  TrainOptions options = in_fp16(model_xs(), 1024);
  options.loss_scale_window = 4;
  options.hysteresis = 2;
  options.zero_stage = zero_stage;
  options.test_overflow = fault;
  constexpr int64_t kSteps = 9;
  const Lines whole = run_lines(options, grid, kSteps)[0];
  std::set<double> scales;
  for (const Line& line : whole) {
    scales.insert(line.loss_scale);
  }
  EXPECT_GE(scales.size(), 2u);
  for (const int64_t at : {2, 3, 4}) {
    const ScratchDir scratch;
    const std::string saved = scratch / "saved", again = scratch / "again";
    run_lines(options, grid, at, {.save = saved});
    const Lines rest = run_lines(options, grid, kSteps - at, {.load = saved})[0];
    EXPECT_TRUE(rest == (Lines{whole.begin() + at, whole.end()})) << "saved behind step " << at;
    // Loading changes nothing: what is saved again is the same.
    run_lines(options, grid, 0, {.load = saved, .save = again});
    EXPECT_EQ(saved_state(again, at), saved_state(saved, at));
    EXPECT_EQ(saved_state(saved, at).at("loss_scaler").at("scale"), whole[static_cast<size_t>(at - 1)].loss_scale);
  }
}

TEST(FewFp16, ResumesWithTheScaleAndItsCounters) {
  check_resume({1, 1, 1}, 0, "");
  check_resume({1, 1, 2}, 1, "rank=1,step=2");  // one overflow used up the hysteresis
}
TEST(Fp16, ResumesWithTheScaleAndItsCounters) {
  check_resume({2, 2, 1}, 0, "rank=3,step=3");
  for (const int zero_stage : {1, 2, 3}) {
    check_resume({1, 2, 2}, zero_stage, "");
  }
}

TEST(FewFp16, EndsWhenTheScaleCannotFall) {
  for (const bool is_static : {false, true}) {
    TrainOptions options = in_fp16(model_xs(), is_static ? 0 : kLargestLossScale);
    (is_static ? options.loss_scale : options.min_loss_scale) = kLargestLossScale;
    const TrainOptions resolved = with_grid(options, {1, 2, 1});
    const TinySource source = source_of(options);
    run_ranks(2, [&](RankContext& rank) {
      Training training(rank, resolved);
      const uint64_t before = training.sync.values().hash_values();
      for (int64_t step = 1; step < LossScaler::kMostSkipsAtFloor; ++step) {
        EXPECT_EQ(train_step(training, source).outcome, StepOutcome::kSkipped);
      }
      const StepResult last = train_step(training, source);
      EXPECT_EQ(last.outcome, StepOutcome::kScaleAtFloor);
      EXPECT_TRUE(must_end(last.outcome));
      EXPECT_EQ(last.step, LossScaler::kMostSkipsAtFloor);
      EXPECT_EQ(training.sync.values().hash_values(), before);
      EXPECT_EQ(training.optimizer.num_updates(), 0);
      const std::string where = find_non_finite(training, source);
      EXPECT_NE(where.find("all activations are finite"), std::string::npos) << where;
      EXPECT_NE(where.find("gradient of"), std::string::npos) << where;
    });
  }
}

// A loss that is not finite is no overflow of gradients, and ends the run, unless that was switched off.
TEST(FewFp16, ALossThatIsNotFiniteIsNotSkipped) {
  for (const bool check : {true, false}) {
    TrainOptions options = in_fp16(model_xs(), 4096);
    options.check_for_nan_in_loss_and_grad = check;
    options.hysteresis = 1;
    options.test_nan = "rank=0,step=2";
    const std::vector<Lines> ranks = run_lines(options, {1, 2, 1}, 3);
    for (const Lines& lines : ranks) {
      EXPECT_TRUE(std::isnan(lines[1].loss));
      EXPECT_EQ(lines[1].outcome, check ? StepOutcome::kNotFinite : StepOutcome::kSkipped);
      EXPECT_EQ(lines[1].loss_scale, check ? 4096 : 2048);
      EXPECT_EQ(lines[1].iteration, check ? 1 : 2);
      EXPECT_EQ(lines[1].state, lines[0].state);
    }
  }
}

// Validation has no scale, and no overflow.
TEST(FewFp16, EvaluatesWithoutAScale) {
  TrainOptions options = model_xs();
  const TinySource source = source_of(options);
  std::vector<double> losses;
  for (const double scale : {0.0, 1.0, kLargestLossScale}) {
    options.fp16 = scale != 0;
    options.loss_scale = scale;
    run_ranks(1, [&](RankContext& rank) {
      Training training(rank, with_grid(options, {1, 1, 1}));
      losses.push_back(evaluate(training, source, 2));
    });
  }
  EXPECT_EQ(losses[1], losses[2]);
  EXPECT_LE(relative_difference(losses[1], losses[0]), 2.5e-4);
  EXPECT_NE(losses[1], losses[0]);
}

// What the scale comes down by on the way is the same on the grid and on one rank.
TEST(FewFp16, VerifyLayoutCountsStepsThatUpdate) {
  const TrainOptions options = in_fp16(model_xs(), kDefaultInitialLossScale);
  const TinySource source = source_of(options);
  for (const GridShape& grid : {GridShape{2, 1, 1}, GridShape{1, 2, 2}}) {
    run_ranks(grid.num_ranks(), [&](RankContext& rank) {
      const LayoutReport report = verify_layout(rank, with_grid(options, grid), source, 3);
      EXPECT_TRUE(report.equal) << grid.text() << ": " << report.first_difference;
      EXPECT_LE(report.worst_loss, 2.5e-4);
    });
  }
}

// Stages with one --grad-reduce, and schedules, give equal bits through skipped steps and a doubling.
void check_stages(const GridShape& grid, bool sequence_parallel) {
  TrainOptions options = in_fp16(model_xs(), 1 << 23);
  options.loss_scale_window = 2;
  options.sequence_parallel = sequence_parallel;
  const auto lines_at = [&](int zero_stage, const char* schedule) {
    options.zero_stage = zero_stage;
    options.pipeline_schedule = schedule;
    std::vector<Lines> ranks = run_lines(options, grid, 8);
    for (Lines& lines : ranks) {
      for (Line& line : lines) {
        line.weights = 0;  // of the arena, which lies differently at each stage; line.state is of the tensors
      }
    }
    return ranks;
  };
  for (const char* grad_reduce : {"step", "micro-batch"}) {
    options.grad_reduce = grad_reduce;
    const std::vector<Lines> whole = lines_at(0, "1f1b");
    EXPECT_GE(whole[0].back().skipped, 1);
    EXPECT_GE(whole[0].back().updates, 2);
    EXPECT_TRUE(grid.pipeline == 1 || lines_at(0, "gpipe") == whole) << grid.text() << " " << grad_reduce;
    for (const int zero_stage : {1, 2, 3}) {
      EXPECT_TRUE(lines_at(zero_stage, "1f1b") == whole) << grid.text() << " " << grad_reduce << " zero " << zero_stage;
    }
  }
}

TEST(FewFp16, StagesAndSchedulesGiveEqualBits) {
  check_stages({1, 2, 2}, false);
}
TEST(Fp16, StagesGiveEqualBitsWithPartsOfTheRows) {
  check_stages({2, 1, 2}, true);
}

// Where state and weights lie changes nothing that a rank knows, in front of a skipped step, in it and behind it.
struct Files {
  GridShape grid;
  int zero_stage;
  bool weights = false;  // too
  bool sequence_parallel = false;
};
void check_files(const Files& test) {
  TrainOptions options = in_fp16(model_xs(), 4096);
  options.hysteresis = 1;
  options.loss_scale_window = 2;
  options.zero_stage = test.zero_stage;
  options.sequence_parallel = test.sequence_parallel;
  options.test_overflow = fmt::format("rank={},step=3", test.grid.num_ranks() - 1);
  const std::vector<Lines> resident = run_lines(options, test.grid, 5);
  EXPECT_EQ(resident[0][2].outcome, StepOutcome::kSkipped);
  EXPECT_EQ(resident[0][4].outcome, StepOutcome::kUpdated);
  const ScratchDir scratch;
  const TrainOptions files =
      test.weights ? with_weights_in_files(options, scratch) : with_state_in_files(options, scratch);
  EXPECT_TRUE(run_lines(files, test.grid, 5) == resident)
      << test.grid.text() << " zero " << test.zero_stage << (test.weights ? " weights" : " state") << " in files";
}

TEST(FewFp16, FilesChangeNoBit) {
  check_files({{1, 1, 1}, 0});
  check_files({{1, 1, 2}, 1});
  check_files({{1, 1, 2}, 3, true});
}
TEST(Fp16, FilesChangeNoBit) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    check_files({{1, 2, 2}, zero_stage});
    check_files({{2, 1, 2}, zero_stage, zero_stage == 3, true});
  }
  check_files({{1, 2, 2}, 3, true});
  check_files({{2, 2, 1}, 3, true});
}

}  // namespace
}  // namespace ashlar
