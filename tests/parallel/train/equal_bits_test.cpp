// What law 1 promises to the last bit: schedules, repetitions, queued streams, initial weights, batches and replicas.
#include <gtest/gtest.h>

#include "tests/parallel/train/run_trace.h"

namespace ashlar {
namespace {

using namespace test;

TinySource source_of(const TrainOptions& options) {
  return TinySource(options.seq_length, options.vocab_size);
}

std::vector<GridShape> some_grids() {
  return {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {1, 4, 1}, {1, 2, 2}, {2, 1, 2}, {4, 1, 1}, {2, 2, 2}};
}

void check_schedules(const GridShape& grid, int64_t steps) {
  TrainOptions options = model_xs();
  options.pipeline_schedule = "1f1b";
  const RunTrace one_f_one_b = run_steps(options, grid, source_of(options), steps);
  options.pipeline_schedule = "gpipe";
  const RunTrace gpipe = run_steps(options, grid, source_of(options), steps);
  EXPECT_TRUE(gpipe.same_bits(one_f_one_b)) << grid.text();
  EXPECT_LT(gpipe.losses.back(), gpipe.losses.front());
}

void check_repetitions(const GridShape& grid, int64_t steps) {
  const TrainOptions options = model_xs();
  const RunTrace once = run_steps(options, grid, source_of(options), steps);
  EXPECT_TRUE(run_steps(options, grid, source_of(options), steps).same_bits(once)) << grid.text();
  EXPECT_TRUE(run_steps(options, grid, source_of(options), steps, {.queued_streams = true}).same_bits(once))
      << grid.text() << " queued";
  EXPECT_TRUE(run_steps(options, grid, source_of(options), steps, {.carrier = Carrier::kMessages}).same_bits(once))
      << grid.text() << " by messages";
}

TEST(FewEqualBits, SchedulesRepetitionsAndQueuedStreams) {
  check_schedules({1, 2, 1}, 3);
  check_repetitions({2, 2, 2}, 2);
}
TEST(EqualBits, SchedulesRepetitionsAndQueuedStreams) {
  for (const GridShape& grid : {GridShape{1, 1, 1}, GridShape{1, 4, 1}, GridShape{2, 2, 2}}) {
    check_schedules(grid, 20);
    check_repetitions(grid, 20);
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

TEST(FewEqualBits, InitialWeightsOnEveryGrid) {
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

void check_replicas(const GridShape& grid, int64_t steps) {
  RunHooks hooks;
  hooks.behind_step = [&](Training& training, const StepResult&) {
    EXPECT_TRUE(replicas_are_equal(training)) << grid.text() << " step " << training.state.iteration;
  };
  const TrainOptions options = model_xs();
  run_steps(options, grid, source_of(options), steps, {}, hooks);
}

TEST(FewEqualBits, ReplicasAfterEveryStep) {
  check_replicas({2, 2, 1}, 3);
}
TEST(EqualBits, ReplicasAfterEveryStep) {
  for (const GridShape& grid : {GridShape{2, 2, 2}, GridShape{4, 1, 1}, GridShape{1, 4, 1}}) {
    check_replicas(grid, 10);
  }
}

}  // namespace
}  // namespace ashlar
