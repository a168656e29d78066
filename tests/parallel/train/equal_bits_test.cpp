// What law 1 promises to the last bit: schedules, repetitions, queued streams, initial weights, batches and replicas.
#include <gtest/gtest.h>

#include "tests/parallel/train/run_trace.h"

namespace ashlar {
namespace {

using namespace test;

constexpr int64_t kSteps = 20;

TinySource source_of(const TrainOptions& options) {
  return TinySource(options.seq_length, options.vocab_size);
}

std::vector<GridShape> some_grids() {
  return {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {1, 4, 1}, {1, 2, 2}, {2, 1, 2}, {4, 1, 1}, {2, 2, 2}};
}

TEST(EqualBits, GpipeEquals1F1B) {
  TrainOptions options = model_xs();
  for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{1, 4, 1}, GridShape{2, 2, 2}}) {
    options.pipeline_schedule = "1f1b";
    const RunTrace one_f_one_b = run_steps(options, grid, source_of(options), kSteps);
    options.pipeline_schedule = "gpipe";
    const RunTrace gpipe = run_steps(options, grid, source_of(options), kSteps);
    EXPECT_TRUE(gpipe.same_bits(one_f_one_b)) << grid.text();
    EXPECT_LT(gpipe.losses.back(), gpipe.losses.front());
  }
}

TEST(EqualBits, RepeatedRunsAndQueuedStreams) {
  const TrainOptions options = model_xs();
  for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{2, 2, 2}}) {
    const RunTrace once = run_steps(options, grid, source_of(options), kSteps);
    EXPECT_TRUE(run_steps(options, grid, source_of(options), kSteps).same_bits(once)) << grid.text();
    EXPECT_TRUE(run_steps(options, grid, source_of(options), kSteps, {.queued_streams = true}).same_bits(once))
        << grid.text() << " queued";
    EXPECT_TRUE(run_steps(options, grid, source_of(options), kSteps, {.carrier = Carrier::kMessages}).same_bits(once))
        << grid.text() << " by messages";
  }
}

TEST(EqualBits, RankOrderChangesNothing) {
  TrainOptions options = model_xs();
  const RunTrace once = run_steps(options, {2, 2, 2}, source_of(options), 5);
  options.use_tp_pp_dp_mapping = true;
  const RunTrace other = run_steps(options, {2, 2, 2}, source_of(options), 5);
  EXPECT_EQ(other.losses, once.losses);
  EXPECT_EQ(other.grad_norms, once.grad_norms);
  EXPECT_EQ(hash_of(other.weights), hash_of(once.weights));
}

TEST(EqualBits, InitialWeightsOnEveryGrid) {
  for (const bool untied : {false, true}) {
    TrainOptions options = model_xs();
    options.untie_embeddings_and_output_weights = untied;
    const uint64_t expected = hash_of(run_steps(options, {1, 1, 1}, source_of(options), 0).weights);
    for (const GridShape& grid : some_grids()) {
      RunHooks hooks;
      hooks.prepare = [&](Training& training) { EXPECT_TRUE(replicas_are_equal(training)) << grid.text(); };
      EXPECT_EQ(hash_of(run_steps(options, grid, source_of(options), 0, {}, hooks).weights), expected) << grid.text();
    }
    options.seed = 99;
    EXPECT_NE(hash_of(run_steps(options, {1, 1, 1}, source_of(options), 0).weights), expected);
  }
}

// Notes which samples a run reads.
class RecordingSource final : public SampleSource {
 public:
  explicit RecordingSource(const SampleSource& inner) : inner_(inner) {}
  int64_t seq_length() const override { return inner_.seq_length(); }
  int64_t samples_per_epoch() const override { return inner_.samples_per_epoch(); }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> targets,
            std::span<float> mask) const override {
    inner_.read(sample, tokens, targets, mask);
    const std::lock_guard lock(mutex_);
    seen_[sample] = {tokens.begin(), tokens.end()};
  }
  std::string description() const override { return inner_.description(); }
  std::map<int64_t, std::vector<int32_t>> seen() const { return seen_; }

 private:
  const SampleSource& inner_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::vector<int32_t>> seen_;
};

TEST(EqualBits, BatchesOnEveryGrid) {
  const TrainOptions options = model_xs();
  const TinySource source = source_of(options);
  const RecordingSource one(source);
  run_steps(options, {1, 1, 1}, one, 2);
  ASSERT_EQ(one.seen().size(), 16u);
  for (const GridShape& grid : some_grids()) {
    const RecordingSource other(source);
    run_steps(options, grid, other, 2);
    EXPECT_EQ(other.seen(), one.seen()) << grid.text();
  }
}

TEST(EqualBits, ReplicasAfterEveryStep) {
  for (const GridShape& grid : {GridShape{2, 2, 2}, GridShape{4, 1, 1}, GridShape{1, 4, 1}}) {
    RunHooks hooks;
    hooks.behind_step = [&](Training& training, const StepResult&) {
      EXPECT_TRUE(replicas_are_equal(training)) << grid.text() << " step " << training.state.iteration;
    };
    const TrainOptions options = model_xs();
    run_steps(options, grid, source_of(options), 10, {}, hooks);
  }
}

}  // namespace
}  // namespace ashlar
