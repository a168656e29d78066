// Ranks that disagree, and ranks that never come: every member hears of it, and the report names the right one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "runtime/comm/host/status_board.h"
#include "tests/runtime/comm/contract_data.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

using enum Transfer::Direction;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

struct Heard {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
};

// Runs `body` and gives what every rank threw. A missing rank waits in its body by calling sleep_until_end().
std::vector<Heard> errors_of(int num_ranks, const std::function<void(RankContext&, Stream&)>& body,
                             ThreadRankOptions options) {
  std::vector<Heard> heard(static_cast<size_t>(num_ranks));
  try {
    run_ranks(
        num_ranks,
        [&](RankContext& rank) {
          const auto stream = rank.device.create_stream();
          try {
            body(rank, *stream);
          } catch (const Error& error) {
            heard[static_cast<size_t>(rank.world.rank())] = {error.code(), error.what()};
            throw;
          }
        },
        options);
  } catch (const Error&) {
  }
  return heard;
}

// What a hung rank looks like to the others. (A thread cannot be killed, so it leaves once they have given up.)
void sleep_until_end(RankContext& rank) {
  while (!rank.recorder.board().job_ended()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

class Faults : public testing::TestWithParam<Carrier> {
 protected:
  ThreadRankOptions options(double timeout_seconds = 20) const {
    return {.timeout_seconds = timeout_seconds, .carrier = GetParam()};
  }
  void expect_mismatch(const std::function<void(RankContext&, Stream&)>& body, const std::string& odd,
                       const std::string& others) {
    const std::vector<Heard> heard = errors_of(3, body, options());
    for (const Heard& error : heard) {
      EXPECT_EQ(error.code, ErrorCode::kCommunication);
      EXPECT_THAT(error.text, HasSubstr("operation #1 of group \"world\" is not the same on all members"));
      EXPECT_THAT(error.text, HasSubstr("rank 1 calls " + odd));
      EXPECT_THAT(error.text, AnyOf(HasSubstr("rank 0 calls " + others), HasSubstr("rank 2 calls " + others)));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Carriers, Faults, testing::Values(Carrier::kRegion, Carrier::kMessages),
                         [](const auto& carrier) { return carrier.param == Carrier::kRegion ? "Region" : "Messages"; });

TEST_P(Faults, DifferentOperations) {
  expect_mismatch(
      [](RankContext& rank, Stream& stream) {
        std::vector<float> x(8);
        if (rank.world.rank() == 1) {
          rank.world.broadcast(view(x), 2, stream).wait(stream);
        } else {
          rank.world.all_reduce(view(x), ReduceOp::kSum, stream).wait(stream);
        }
      },
      "broadcast(root 2) #1 of 32 bytes fp32", "all_reduce(sum) #1 of 32 bytes fp32");
}

TEST_P(Faults, DifferentSizes) {
  expect_mismatch(
      [](RankContext& rank, Stream& stream) {
        std::vector<float> x(rank.world.rank() == 1 ? 100000 : 8);
        rank.world.all_reduce(view(x), ReduceOp::kSum, stream).wait(stream);
      },
      "all_reduce(sum) #1 of 400000 bytes fp32", "all_reduce(sum) #1 of 32 bytes fp32");
}

TEST_P(Faults, DifferentTypesOfTheSameSize) {
  expect_mismatch(
      [](RankContext& rank, Stream& stream) {
        std::vector<float> x(8);
        std::vector<int64_t> y(4);
        rank.world.all_reduce(rank.world.rank() == 1 ? view(y) : view(x), ReduceOp::kSum, stream).wait(stream);
      },
      "all_reduce(sum) #1 of 32 bytes int64", "all_reduce(sum) #1 of 32 bytes fp32");
}

TEST_P(Faults, DifferentReductions) {
  expect_mismatch(
      [](RankContext& rank, Stream& stream) {
        std::vector<float> x(8);
        rank.world.all_reduce(view(x), rank.world.rank() == 1 ? ReduceOp::kMax : ReduceOp::kSum, stream);
      },
      "all_reduce(max) #1", "all_reduce(sum) #1");
}

TEST_P(Faults, DifferentRoots) {
  expect_mismatch(
      [](RankContext& rank, Stream& stream) {
        std::vector<float> x(8);
        rank.world.broadcast(view(x), rank.world.rank() == 1 ? 1 : 0, stream);
      },
      "broadcast(root 1) #1", "broadcast(root 0) #1");
}

TEST_P(Faults, BarrierAgainstCollective) {
  expect_mismatch(
      [](RankContext& rank, Stream& stream) {
        std::vector<float> x(24);
        if (rank.world.rank() == 1) {
          rank.world.barrier();
        } else {
          rank.world.all_gather(view(x), view(x).slice(0, 8), stream);
        }
      },
      "barrier #1", "all_gather #1");
}

TEST_P(Faults, MissingRankIsNamedWithWhereItStands) {
  const std::vector<Heard> heard = errors_of(
      3,
      [](RankContext& rank, Stream& stream) {
        rank.recorder.set_coordinate(rank.world.rank() == 2 ? "t1 p0 d1" : "t0 p0 d0");
        const std::unique_ptr<Communicator> data = rank.world.split(0, rank.world.rank(), "data");
        std::vector<float> x(100, 1.0f);
        data->all_reduce(view(x), ReduceOp::kSum, stream).wait(stream);
        rank.recorder.set_position(7, "1F3", 3);
        if (rank.world.rank() == 2) {
          sleep_until_end(rank);
        }
        data->all_reduce(view(x), ReduceOp::kSum, stream).wait(stream);
      },
      options(0.3));
  // One of the two that waited wrote the report; all throw the same code and name the culprit.
  int num_reports = 0;
  for (const Heard& error : heard) {
    EXPECT_EQ(error.code, ErrorCode::kTimeout);
    EXPECT_THAT(error.text, HasSubstr("all_reduce(sum) #2 of 400 bytes fp32 of group \"data\": rank 2 never entered"));
    if (error.text.find("where everybody stands") != std::string::npos) {
      ++num_reports;
      EXPECT_THAT(error.text, HasSubstr("entered: 0, 1"));
      EXPECT_THAT(error.text, HasSubstr("missing rank 2 (t1 p0 d1): step 7, action 1F3, micro-batch 3; in no "
                                        "operation; last finished in \"data\": all_reduce #1"));
      EXPECT_THAT(error.text, HasSubstr("\n  rank 0 (t0 p0 d0): step 7"));
    }
  }
  EXPECT_GE(num_reports, 1);
  EXPECT_THAT(heard[2].text, HasSubstr("this is rank 2 (t1 p0 d1)"));
}

TEST_P(Faults, MissingReceiveAndMissingSendAreNamed) {
  for (const bool receiver_waits : {false, true}) {
    const std::vector<Heard> heard = errors_of(
        2,
        [&](RankContext& rank, Stream& stream) {
          const std::unique_ptr<Communicator> pipeline = rank.world.split(0, rank.world.rank(), "pipeline");
          rank.recorder.set_position(3, "0SEND_F1", 1);
          if (pipeline->rank() == 1) {
            sleep_until_end(rank);
          } else {
            std::vector<float> x(1000);
            const Transfer leg{receiver_waits ? kReceive : kSend, 1, 5, view(x)};
            pipeline->exchange({&leg, 1}, stream).wait(stream);
          }
        },
        options(0.3));
    EXPECT_EQ(heard[0].code, ErrorCode::kTimeout);
    EXPECT_THAT(heard[0].text, AllOf(HasSubstr("exchange #1 of 4000 bytes fp32 of group \"pipeline\": rank 1 never " +
                                               std::string(receiver_waits ? "sent" : "received")),
                                     HasSubstr("(4000 bytes, tag 5)"), HasSubstr("missing rank 1: step 3")));
  }
}

TEST_P(Faults, MissingRankAtABarrierAndInASplit) {
  for (const bool barrier : {true, false}) {
    const std::vector<Heard> heard = errors_of(
        2,
        [&](RankContext& rank, Stream&) {
          if (rank.world.rank() == 0) {
            sleep_until_end(rank);
          } else if (barrier) {
            rank.world.barrier();
          } else {
            rank.world.split(0, 0, "x");
          }
        },
        options(0.3));
    EXPECT_EQ(heard[1].code, ErrorCode::kTimeout);
    EXPECT_THAT(heard[1].text,
                HasSubstr(std::string(barrier ? "barrier" : "split") + " #1 of group \"world\": rank 0 never entered"));
  }
}

TEST_P(Faults, MessagesThatDoNotPair) {
  for (const bool wrong_tag : {true, false}) {
    const std::vector<Heard> heard = errors_of(
        2,
        [&](RankContext& rank, Stream& stream) {
          std::vector<float> x(rank.world.rank() == 1 && !wrong_tag ? 90 : 100);
          const Transfer leg{rank.world.rank() == 0 ? kSend : kReceive, 1 - rank.world.rank(),
                             rank.world.rank() == 1 && wrong_tag ? 4 : 3, view(x)};
          rank.world.exchange({&leg, 1}, stream).wait(stream);
        },
        options());
    for (const Heard& error : heard) {
      EXPECT_EQ(error.code, ErrorCode::kCommunication);
      EXPECT_THAT(error.text, HasSubstr("rank 0 sends 400 bytes with tag 3, rank 1 receives " +
                                        std::string(wrong_tag ? "400 bytes with tag 4" : "360 bytes with tag 3")));
    }
  }
}

TEST(FlightRecorder, RingKeepsTheLast64OperationsAndWhereTheyHappened) {
  run_ranks(2, [](RankContext& rank) {
    const auto stream = rank.device.create_stream();
    const std::unique_ptr<Communicator> comm = rank.world.split(0, rank.world.rank(), "tensor");
    std::vector<float> x(3);
    for (int step = 0; step < 100; ++step) {
      rank.recorder.set_position(step, "0F2", 2);
      comm->all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
    }
    const std::string text = rank.recorder.dump();
    EXPECT_THAT(text, HasSubstr("group \"tensor\""));
    EXPECT_THAT(text, HasSubstr("all_reduce(sum) #100 of 12 bytes fp32, finished"));
    EXPECT_THAT(text, HasSubstr("step 99, action 0F2, micro-batch 2"));
    EXPECT_THAT(text, HasSubstr("#37 of"));
    EXPECT_THAT(text, testing::Not(HasSubstr("#36 of")));
    EXPECT_THAT(rank.recorder.dump(2), testing::Not(HasSubstr("#98 of")));
  });
}

}  // namespace
}  // namespace ashlar
