// Ranks that never come, communicators that fail, starts that hang: every rank ends before the stand-in would, and the
// record says who is missing in what.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "runtime/comm/host/report.h"
#include "runtime/comm/host/status_board.h"
#include "runtime/comm/nccl/nccl_rank.h"
#include "runtime/comm/wait_reached.h"
#include "tests/emulation/nccl/ranks_on_gpus.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Ended {
  std::vector<std::string> heard;  // by rank
  std::string reason;              // what ended the job
  double seconds = 0;
};

// Runs `body` on four ranks. All must throw.
Ended run_faulty(const std::function<void(RankContext&, Stream&)>& body, double timeout_seconds) {
  Ended ended;
  ended.heard.resize(4);
  const auto start = std::chrono::steady_clock::now();
  try {
    run_on_gpus(
        4,
        [&](RankContext& rank) {
          try {
            rank.recorder.set_coordinate(fmt::format("t{} p{}", rank.world.rank() % 2, rank.world.rank() / 2).c_str());
            rank.recorder.set_position(7, "1F2", 2);
            end_job_on_error(rank, [&] {
              const auto stream = rank.device.create_stream();
              body(rank, *stream);
            });
          } catch (const Error& error) {
            ended.heard[static_cast<size_t>(rank.world.rank())] = error.what();
            ended.reason = rank.recorder.board().end_reason();
            throw;
          }
        },
        timeout_seconds);
  } catch (const Error& error) {
    ended.reason = ended.reason.empty() ? error.what() : ended.reason;
  }
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(reports(), "");
  standin::configure_nccl({});
  return ended;
}

void sleep_until_end(RankContext& rank) {
  while (!rank.recorder.board().job_ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Host waits that end: what a training step does once a step.
void wait_for(RankContext& rank, Stream& stream) {
  const auto event = rank.device.create_event();
  stream.record(*event);
  wait_reached(*event, stream, rank.recorder, "the end of the step");
}

void expect_all_heard(const Ended& ended) {
  for (const std::string& text : ended.heard) {
    EXPECT_THAT(text, HasSubstr("stopped because"));
  }
}

class Faults : public testing::Test {
 protected:
  void SetUp() override { play_gpus(4, 3, standin::Delays::kRandom, false); }
};

TEST_F(Faults, RankThatNeverComesToACollectiveIsNamed) {
  const Ended ended = run_faulty(
      [](RankContext& rank, Stream& stream) {
        const auto data = rank.device_world.split(0, rank.world.rank(), "data");
        const GpuArray x(rank, 100);
        stream.fill_zero(x.data(), 400);
        data->all_reduce(x.view(), ReduceOp::kSum, stream).wait(stream);
        wait_for(rank, stream);
        if (rank.world.rank() == 3) {
          sleep_until_end(rank);
        } else {
          data->all_reduce(x.view(), ReduceOp::kSum, stream).wait(stream);
        }
        wait_for(rank, stream);
        data->barrier();
      },
      0.5);
  EXPECT_LT(ended.seconds, 5);
  expect_all_heard(ended);
  EXPECT_THAT(ended.reason,
              AllOf(HasSubstr("in all_reduce(sum) #2 of 400 bytes fp32 of group \"data\": rank 3 never entered it; "
                              "entered: 0, 1, 2 (see --distributed-timeout-minutes); it was issued in step 7, action "
                              "1F2, micro-batch 2"),
                    HasSubstr("missing rank 3 (t1 p1): step 7, action 1F2, micro-batch 2; in no operation; last "
                              "finished in \"data\": all_reduce #1")));
}

TEST_F(Faults, RankThatNeverReceivesIsNamed) {
  const Ended ended = run_faulty(
      [](RankContext& rank, Stream& stream) {
        const auto pipeline = rank.device_world.split(rank.world.rank() % 2, rank.world.rank(), "pipeline");
        const GpuArray x(rank, 100);
        stream.fill_zero(x.data(), 400);
        for (int turn = 0; turn < 2; ++turn) {
          if (turn == 1 && rank.world.rank() == 3) {
            sleep_until_end(rank);
          }
          const auto direction = pipeline->rank() == 0 ? Transfer::Direction::kSend : Transfer::Direction::kReceive;
          const Transfer leg{direction, 1 - pipeline->rank(), turn, x.view()};
          pipeline->exchange({&leg, 1}, stream).wait(stream);
          wait_for(rank, stream);
        }
        rank.device_world.barrier();
      },
      0.5);
  EXPECT_LT(ended.seconds, 5);
  expect_all_heard(ended);
  EXPECT_THAT(ended.reason, AllOf(HasSubstr("missing rank 3 (t1 p1)"), HasSubstr("rank 3 ")));
}

TEST_F(Faults, ErrorOfNcclEndsTheJobLongBeforeTheDeadline) {
  standin::configure_nccl({.fault = {standin::NcclFault::kAsyncError, "data", 2, 3}});
  const Ended ended = run_faulty(
      [](RankContext& rank, Stream& stream) {
        const auto data = rank.device_world.split(0, rank.world.rank(), "data");
        const GpuArray x(rank, 100);
        stream.fill_zero(x.data(), 400);
        for (int turn = 0; turn < 4; ++turn) {
          data->all_reduce(x.view(), ReduceOp::kSum, stream).wait(stream);
        }
        wait_for(rank, stream);
      },
      60);
  EXPECT_LT(ended.seconds, 10);
  expect_all_heard(ended);
  EXPECT_THAT(ended.reason,
              AllOf(HasSubstr("rank 2 (t0 p1): step 7"), HasSubstr("a failure from NCCL in group \"data\""),
                    HasSubstr("planted failure of ncclAllReduce #3"),
                    HasSubstr("under way there is all_reduce(sum) #3 of 400 bytes fp32")));
}

TEST_F(Faults, ErrorOfOneRankStopsTheOthersWhileItsDeviceWaits) {
  const Ended ended = run_faulty(
      [](RankContext& rank, Stream& stream) {
        const GpuArray x(rank, 100);
        stream.fill_zero(x.data(), 400);
        if (rank.world.rank() == 1) {
          throw Error(ErrorCode::kData, "train.bin: truncated");
        }
        rank.device_world.all_reduce(x.view(), ReduceOp::kSum, stream).wait(stream);
        wait_for(rank, stream);
      },
      60);
  EXPECT_LT(ended.seconds, 10);
  EXPECT_EQ(ended.heard[1], "train.bin: truncated");
  EXPECT_THAT(ended.heard[0], HasSubstr("stopped because rank 1 ended the job (train.bin: truncated)"));
}

TEST_F(Faults, StartThatHangsEndsAtItsDeadline) {
  standin::configure_nccl({.fault = {standin::NcclFault::kInitHangs, "world", 1, 1}});
  const auto start = std::chrono::steady_clock::now();
  std::string text;
  try {
    run_thread_ranks(
        2, [](RankContext&) {},
        {.device = {.kind = DeviceKind::kCuda, .backend = DeviceBackend::kNccl, .init_timeout_seconds = 0.5}});
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10);
  EXPECT_THAT(text, HasSubstr("for the other ranks at the start of NCCL (ncclCommInitRankConfig)"));
}

TEST_F(Faults, OldLibrariesAreRefusedWithTheirVersion) {
  standin::configure_nccl({.fault = {}, .version = 21805});
  std::string text;
  try {
    run_on_gpus(2, [](RankContext&) {});
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_THAT(text, HasSubstr("NCCL 2.18.5 is loaded, 2.19.0 or later is needed"));
}

// Four ranks on two hosts: the board of this one shows ranks 0 and 1, and nothing of 2 and 3.
class TwoHosts : public testing::Test {
 protected:
  std::string late() { return late_text(mine_, group_, op_, 2.5); }

  const GroupInfo group_{.id = 7, .name = "data", .rank = 0, .world_ranks = {0, 1, 2, 3}};
  const OpInfo op_{.number = 3, .bytes = 400, .kind = OpKind::kAllReduce, .dtype = DType::kF32};
  std::vector<uint64_t> region_ = std::vector<uint64_t>(StatusBoard::region_bytes(4) / sizeof(uint64_t) + 1);
  StatusBoard board_{reinterpret_cast<std::byte*>(region_.data()), 4, true};
  FlightRecorder mine_{board_, 0};
  FlightRecorder other_{board_, 1};
  const int my_slot_ = mine_.open_group(group_.id, group_.name, GroupKind::kAsynchronous);
  const int other_slot_ = other_.open_group(group_.id, group_.name, GroupKind::kAsynchronous);
};

TEST_F(TwoHosts, MembersElsewhereAreNotAccused) {
  mine_.enter(my_slot_, op_);
  other_.enter(other_slot_, op_);
  EXPECT_FALSE(is_missed(mine_, group_, op_));
  EXPECT_THAT(late(), AllOf(HasSubstr("in all_reduce(sum) #3 of 400 bytes fp32 of group \"data\": all members on this "
                                      "host entered it, and it did not end; rank 2, 3 is on another host, not visible "
                                      "from here; entered: 0, 1"),
                            Not(HasSubstr("never entered")), Not(HasSubstr("missing"))));
}

TEST_F(TwoHosts, MembersHereAreNamed) {
  mine_.enter(my_slot_, op_);
  EXPECT_TRUE(is_missed(mine_, group_, op_));
  EXPECT_THAT(late(), AllOf(HasSubstr("\"data\": rank 1 never entered it; rank 2, 3 is on another host, not visible "
                                      "from here; entered: 0 ("),
                            HasSubstr("missing rank 1: in no operation; last finished in \"data\": none"),
                            Not(HasSubstr("missing rank 2"))));
}

// What a group over messages misses, it has seen itself; but it has not seen what else the other has done.
TEST_F(TwoHosts, OfAMissingMessageFromElsewhereNothingElseIsSaid) {
  const std::string text = late_exchange_text(mine_, group_, op_, 2.5, {.peer = 2, .tag = 1, .bytes = 8});
  EXPECT_THAT(text, HasSubstr("missing rank 2: on another host, not visible from here\n"));
  EXPECT_THAT(text, Not(HasSubstr("from here; last finished")));
}

// Before 2.26 all collectives share one stream; the results are the same.
TEST_F(Faults, OlderLibrariesWork) {
  standin::configure_nccl({.fault = {}, .version = 22105});
  run_on_gpus(4, [](RankContext& rank) {
    const auto pair = rank.device_world.split(rank.world.rank() / 2, rank.world.rank(), "pair");
    const auto stream = rank.device.create_stream();
    const GpuArray x(rank, 100);
    const GpuArray y(rank, 100);
    stream->fill_zero(x.data(), 400);
    stream->fill_zero(y.data(), 400);
    Work first = pair->all_reduce(x.view(), ReduceOp::kSum, *stream);
    Work second = rank.device_world.all_reduce(y.view(), ReduceOp::kSum, *stream);
    first.wait(*stream);
    second.wait(*stream);
    wait_for(rank, *stream);
  });
  EXPECT_EQ(reports(), "");
}

}  // namespace
}  // namespace ashlar
