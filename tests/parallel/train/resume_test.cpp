// Saving and going on: equal bits on the same grid, equal numbers on another, and the data position with it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/parallel/train/offload_support.h"
#include "tests/runtime/data/data_files.h"

namespace ashlar {
namespace {

using namespace test;

struct Step {
  double loss, grad_norm;
  std::vector<uint64_t> hashes;  // of the weights, by world rank

  bool operator==(const Step&) const = default;
};

struct Part {
  std::vector<Step> steps;
  uint64_t weights = 0, first_moments = 0, second_moments = 0;  // of the logical tensors, where the part began
};

// Loads from `load` (when not empty), trains `num_steps`, saves to `save` (when not empty).
Part run_part(const TrainOptions& options, const GridShape& grid, const SampleSource& source, const std::string& load,
              int64_t num_steps, const std::string& save) {
  Part part;
  part.steps.resize(static_cast<size_t>(num_steps));
  const TrainOptions resolved = with_grid(options, grid);
  std::mutex mutex;
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, resolved);
    if (!load.empty()) {
      REQUIRE(load_training(training, load, 1).has_value(), ErrorCode::kCheckpoint, "nothing to load");
      EXPECT_TRUE(replicas_are_equal(training)) << grid.text();
    }
    const uint64_t hashes[3] = {hash_of(gather_logical(training, TensorKind::kValue)),
                                hash_of(gather_logical(training, TensorKind::kFirstMoment)),
                                hash_of(gather_logical(training, TensorKind::kSecondMoment))};
    for (Step& step : part.steps) {
      const StepResult result = train_step(training, source);
      const uint64_t hash = training.sync.values().hash_values();
      const std::lock_guard lock(mutex);
      step.loss = result.loss;
      step.grad_norm = result.grad_norm;
      step.hashes.resize(static_cast<size_t>(grid.num_ranks()));
      step.hashes[static_cast<size_t>(rank.world.rank())] = hash;
    }
    if (!save.empty()) {
      save_training(training, save, 1);
    }
    const std::lock_guard lock(mutex);
    part.weights = hashes[0];
    part.first_moments = hashes[1];
    part.second_moments = hashes[2];
  });
  return part;
}

std::vector<Step> joined(std::vector<Step> a, const std::vector<Step>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Three parts against one run: Adam's moments and step number, learning rate, data position and weights all come back.
void check_same_grid(const GridShape& grid, const std::string& optimizer, int64_t first_steps) {
  TrainOptions options = model_xs();
  options.optimizer = optimizer;
  options.lr_decay_style = "cosine";
  options.lr_warmup_iters = 3;
  const TinySource source(options.seq_length, options.vocab_size);
  const std::vector<Step> expected = run_part(options, grid, source, "", first_steps + 3, "").steps;
  const ScratchDir scratch;
  const std::string directory = scratch / "run";
  const Part first = run_part(options, grid, source, "", first_steps, directory);
  const Part second = run_part(options, grid, source, directory, 1, directory);
  const Part third = run_part(options, grid, source, directory, 2, "");
  EXPECT_EQ(joined(joined(first.steps, second.steps), third.steps), expected) << grid.text() << " " << optimizer;
}

TEST(FewResumes, TheSameGridGoesOnBitForBit) {
  check_same_grid({2, 2, 1}, "adam", 1);
}
TEST(Resumes, TheSameGridGoesOnBitForBit) {
  for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{2, 2, 2}, GridShape{1, 4, 1}}) {
    check_same_grid(grid, "adam", 5);
    check_same_grid(grid, "sgd", 5);
  }
}

// Seven layers, so stages are uneven; a tied table; moments of every logical tensor arrive as they were, whoever owns
// them.
void check_other_grids(const std::vector<std::pair<GridShape, int>>& grids_and_stages) {
  TrainOptions options = model_s();
  options.num_layers = 7;
  options.vocab_size = 367;
  options.zero_stage = 1;
  const TinySource source(options.seq_length, options.vocab_size);
  const GridShape first_grid{2, 2, 1};
  const ScratchDir scratch;
  const std::string start = scratch / "start";
  run_part(options, first_grid, source, "", 4, start);
  const Part expected = run_part(options, first_grid, source, start, 5, "");

  std::vector<double> losses, norms;
  for (const Step& step : expected.steps) {
    losses.push_back(step.loss);
    norms.push_back(step.grad_norm);
  }
  for (const auto& [grid, zero_stage] : grids_and_stages) {
    const std::string there = scratch / fmt::format("{} stage {}", grid.text(), zero_stage);
    TrainOptions others = options;
    others.zero_stage = zero_stage;
    const Part moved = run_part(others, grid, source, start, 0, there);
    EXPECT_EQ(moved.weights, expected.weights) << grid.text();
    EXPECT_EQ(moved.first_moments, expected.first_moments) << grid.text();
    EXPECT_EQ(moved.second_moments, expected.second_moments) << grid.text();
    const Part on = run_part(others, grid, source, start, 5, "");
    std::vector<double> their_losses, their_norms;
    for (const Step& step : on.steps) {
      their_losses.push_back(step.loss);
      their_norms.push_back(step.grad_norm);
    }
    EXPECT_LE(worst_difference(their_losses, losses), 1e-5) << grid.text();
    EXPECT_LE(worst_difference(their_norms, norms), 1e-5) << grid.text();
    // And back: what the other grid saved is the same run for the first one, to the last bit.
    EXPECT_EQ(run_part(options, first_grid, source, there, 5, "").steps, expected.steps) << grid.text();
  }
}

TEST(Resumes, AnotherGridGoesOnWithEqualNumbers) {
  check_other_grids({{{1, 3, 1}, 0}, {{4, 1, 1}, 0}, {{1, 1, 1}, 0}, {{2, 2, 2}, 0}});
}
TEST(Resumes, AnotherStageGoesOnWithEqualNumbers) {
  check_other_grids({{{1, 1, 4}, 3}, {{1, 1, 4}, 1}, {{2, 2, 2}, 2}, {{1, 3, 2}, 3}});
}

TEST(FewResumes, RefusesAnotherModel) {
  TrainOptions options = model_xs();
  const TinySource source(options.seq_length, options.vocab_size);
  const ScratchDir scratch;
  run_part(options, {1, 1, 1}, source, "", 1, scratch / "run");
  options.num_layers = 5;
  EXPECT_THROW(run_part(options, {1, 1, 1}, source, scratch / "run", 1, ""), Error);
  options.num_layers = 4;
  options.untie_embeddings_and_output_weights = true;
  EXPECT_THROW(run_part(options, {1, 1, 1}, source, scratch / "run", 1, ""), Error);
}

// What a resume with these options warns of, without time and rank.
std::vector<std::string> warnings_of_resume(const TrainOptions& options, const GridShape& grid,
                                            const std::string& directory, uint64_t data_fingerprint = 1) {
  testing::internal::CaptureStderr();
  run_ranks(grid.num_ranks(), [&](RankContext& rank) {
    Training training(rank, with_grid(options, grid));
    EXPECT_TRUE(load_training(training, directory, data_fingerprint).has_value());
  });
  std::istringstream log(testing::internal::GetCapturedStderr());
  const std::string mark = "[warning] --load " + directory + ": ";
  std::vector<std::string> warnings;
  for (std::string line; std::getline(log, line);) {
    const size_t at = line.find(mark);
    if (at != std::string::npos) {
      warnings.push_back(line.substr(at + mark.size()));
    }
  }
  return warnings;
}

// Each once, by one rank: settings that change how training goes on, and those that change the rounding of sums, given
// or by what another setting makes of them. What changes no bit is silent, and the grid is meant to change.
TEST(FewResumes, WarnsOfOtherSettings) {
  struct Case {
    std::function<void(TrainOptions&)> change;
    GridShape grid;
    std::vector<std::string> warnings;
  };
  const ScratchDir scratch;
  const std::string differs = "; losses will differ from an uninterrupted run", rounds = differs + " by rounding";
  TrainOptions saved = model_xs();
  saved.zero_stage = 1;
  const TinySource source(saved.seq_length, saved.vocab_size);
  run_part(saved, {2, 1, 2}, source, "", 1, scratch / "fp32");
  const auto check = [](const TrainOptions& options, const std::string& directory, const std::vector<Case>& cases) {
    for (size_t at = 0; at < cases.size(); ++at) {
      TrainOptions other = options;
      cases[at].change(other);
      EXPECT_EQ(warnings_of_resume(other, cases[at].grid, directory), cases[at].warnings) << "case " << at;
    }
  };
  check(
      saved, scratch / "fp32",
      {{[](TrainOptions&) {}, {2, 1, 2}, {}},
       {[](TrainOptions&) {}, {1, 2, 1}, {}},
       {[](TrainOptions& o) { o.grad_reduce = "micro-batch"; },
        {2, 1, 2},
        {"--grad-reduce was step, is micro-batch now" + rounds}},
       {[](TrainOptions& o) { o.micro_batch_size = 2; }, {2, 1, 2}, {"--micro-batch-size was 1, is 2 now" + rounds}},
       {[](TrainOptions& o) { o.zero_stage = 2; }, {2, 1, 2}, {"--grad-reduce was step, is micro-batch now" + rounds}},
       {[](TrainOptions& o) {
          o.zero_stage = 3;
          o.grad_reduce = "step";
          o.pipeline_schedule = "gpipe";
          o.recompute_granularity = "selective";
          o.overlap_grad_reduce = o.overlap_param_gather = true;
        },
        {2, 1, 2},
        {}},
       {[&](TrainOptions& o) {
          o = with_weights_in_files(o, scratch);
          o.grad_reduce = "step";
        },
        {2, 1, 2},
        {}},
       {[](TrainOptions& o) { o.sequence_parallel = true; },
        {2, 1, 2},
        {"--sequence-parallel was off, is on now" + rounds}},
       {[](TrainOptions& o) { o.num_distributed_optimizer_instances = 2; },
        {1, 1, 4},
        {"--num-distributed-optimizer-instances was 1, is 2 now" + rounds}},
       {[](TrainOptions& o) {
          o.lr = 0.002;
          o.clip_grad = 0.5;
        },
        {2, 1, 2},
        {"--lr was 0.001, is 0.002 now" + differs, "--clip-grad was 1.0, is 0.5 now" + differs}},
       {[](TrainOptions& o) { o.bf16 = o.grad_reduce_in_bf16 = true; },
        {2, 1, 2},
        {"--bf16 was off, is on now" + differs, "--grad-reduce-in-bf16 was off, is on now" + differs}},
       {[](TrainOptions& o) {  // no word of a scale where there was none
          o.fp16 = true;
          o.hysteresis = 1;
        },
        {2, 1, 2},
        {"--fp16 was off, is on now" + differs}}});
  EXPECT_EQ(warnings_of_resume(saved, {2, 1, 2}, scratch / "fp32", 2),
            std::vector<std::string>{"the data or its order is not that of the run that saved"});
  saved.fp16 = true;
  run_part(saved, {1, 1, 2}, source, "", 1, scratch / "fp16");
  check(saved, scratch / "fp16",
        {{[](TrainOptions&) {}, {1, 1, 2}, {}},
         {[](TrainOptions& o) { o.hysteresis = 1; }, {1, 1, 2}, {"--hysteresis was 2, is 1 now" + differs}}});
}

// Notes the samples of each step; ranks read in any order, so a step's samples are sorted by where they lie in the
// file.
class BatchRecorder final : public SampleSource {
 public:
  BatchRecorder(const SampleSource& inner, int64_t global_batch) : inner_(inner), global_batch_(global_batch) {}
  int64_t seq_length() const override { return inner_.seq_length(); }
  int64_t samples_per_epoch() const override { return inner_.samples_per_epoch(); }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override {
    inner_.read(sample, tokens, targets, mask);
    const std::lock_guard lock(mutex_);
    batches_[sample / global_batch_][sample] = tokens.front();
  }
  std::string description() const override { return inner_.description(); }
  // Step -> sample number -> first token.
  std::map<int64_t, std::map<int64_t, int32_t>> batches() const { return batches_; }

 private:
  const SampleSource& inner_;
  int64_t global_batch_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::map<int64_t, int32_t>> batches_;
};

// A file of exactly four global batches, read three times: a checkpoint at or beside an epoch's edge loses and repeats
// nothing.
TEST(Resumes, DataAtAnEpochsEdge) {
  TrainOptions options = model_xs();
  options.global_batch_size = 4;
  constexpr int64_t kStepsInAll = 12;
  const data_test::TempFolder folder;
  data_test::write_counting_pair(folder / "text", {4 * 4 * 8 + 1});
  options.vocab_size = 4 * 4 * 8 + 1;
  const std::shared_ptr<const TokenFile> file = open_indexed_file(folder / "text");
  for (const DataOrder order : {DataOrder::kSequential, DataOrder::kShuffle}) {
    const GptDataset data(file, {0, file->num_tokens()}, "train",
                          {.seq_length = options.seq_length, .vocab_size = options.vocab_size, .order = order});
    ASSERT_EQ(data.samples_per_epoch(), 16);
    for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{1, 1, 2}}) {
      const BatchRecorder all(data, options.global_batch_size);
      const Part whole = run_part(options, grid, all, "", kStepsInAll, "");
      ASSERT_EQ(all.batches().size(), static_cast<size_t>(kStepsInAll));
      std::map<int32_t, int> uses;  // every sample once an epoch
      for (const auto& [step, samples] : all.batches()) {
        EXPECT_EQ(samples.size(), 4u);
        for (const auto& [sample, token] : samples) {
          ++uses[token];
        }
      }
      EXPECT_EQ(uses.size(), 16u);
      for (const auto& [token, count] : uses) {
        EXPECT_EQ(count, 3) << "sample that begins with " << token;
      }
      for (const int64_t at : {3, 4, 5, 8}) {
        const ScratchDir scratch;
        const BatchRecorder parts(data, options.global_batch_size);
        const Part first = run_part(options, grid, parts, "", at, scratch / "run");
        const Part second = run_part(options, grid, parts, scratch / "run", kStepsInAll - at, "");
        EXPECT_EQ(parts.batches(), all.batches()) << "saved at step " << at;
        EXPECT_EQ(joined(first.steps, second.steps), whole.steps) << "saved at step " << at;
      }
    }
  }
}

}  // namespace
}  // namespace ashlar
