// Pipelines on GPUs that the emulator and the stand-ins play: every list gives the bits of one rank, as on a CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/comm/host/status_board.h"
#include "tests/parallel/pipeline/run_schedule.h"

namespace ashlar {
namespace {

using test::Outcome;
using test::run;
using test::schedule_from;

class DevicePipeline : public testing::TestWithParam<DeviceBackend> {
 protected:
  void expect_the_bits_of(const Outcome& expected, const Schedule& schedule, const std::vector<int64_t>& layers) {
    const Outcome ours = run(schedule, layers, 1, on_gpus());
    EXPECT_EQ(ours.losses, expected.losses) << schedule.name;
    EXPECT_EQ(ours.evaluation, expected.evaluation) << schedule.name;
    EXPECT_EQ(ours.weights, expected.weights) << schedule.name;
  }
  ThreadRankOptions on_gpus() const {
    return {.timeout_seconds = 60, .device = {.kind = DeviceKind::kCuda, .backend = GetParam()}};
  }
};

TEST_P(DevicePipeline, EveryListGivesTheBitsOfOneRank) {
  const Outcome one = run(make_one_f_one_b(1, 4), {2}, 1, on_gpus());
  EXPECT_GT(one.losses[0], 0);
  EXPECT_NEAR(one.losses.back(), run(make_one_f_one_b(1, 4), {2}).losses.back(), 1e-4);
  expect_the_bits_of(one, make_one_f_one_b(2, 4), {1, 1});
  expect_the_bits_of(one, make_gpipe(2, 4), {1, 1});
  expect_the_bits_of(one,
                     schedule_from(4, {0, 1},
                                   {"0F0 0F1 0I0 0F2 0I1 0W0 0F3 0I2 0W1 0I3 0W2 0W3",
                                    "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3"}),
                     {1, 1});
  // A V: the first rank holds the first and the last stage.
  expect_the_bits_of(one,
                     schedule_from(4, {0, 1, 0},
                                   {"0F0 0F1 2F0 2B0 0F2 0B0 2F1 2B1 0F3 0B1 2F2 2B2 0B2 2F3 2B3 0B3",
                                    "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3"}),
                     {1, 1, 0});
}

// A data set that fails on one rank: its device then waits for messages of ranks that wait for it. The job must have
// ended before memory is given back, since cudaFree waits for the device.
TEST_P(DevicePipeline, AFaultOfOneRankEndsTheJobBeforeMemoryGoes) {
  struct Look {
    FlightRecorder& recorder;
    bool& has_ended;
    ~Look() { has_ended = recorder.board().job_ended(); }
  };
  bool has_ended[2] = {false, false};
  std::string heard;
  try {
    run_ranks(
        2,
        [&](RankContext& rank) {
          const int me = rank.world.rank();
          test::PipelineRig rig(rank, test::rig_config(2), {1, 1}, make_one_f_one_b(2, 4));
          rig.step(0);
          const Look look{rank.recorder, has_ended[me]};
          rig.executor.train(
              [me](int microbatch, MicroBatch& batch) {
                REQUIRE(me != 0 || microbatch != 2, ErrorCode::kData, "train.bin: truncated");
                test::read_rig_batch(1, microbatch, batch);
              },
              0.01, 1);
          rig.executor.read_totals();
          rank.world.barrier();
        },
        on_gpus());
  } catch (const Error& error) {
    heard = error.what();
  }
  EXPECT_THAT(heard, testing::HasSubstr("truncated"));
  EXPECT_TRUE(has_ended[0]);
}

INSTANTIATE_TEST_SUITE_P(Backends, DevicePipeline, testing::Values(DeviceBackend::kStaged, DeviceBackend::kNccl),
                         [](const auto& instance) {
                           return std::string(instance.param == DeviceBackend::kNccl ? "nccl" : "staged");
                         });

}  // namespace
}  // namespace ashlar
