// What the staged communicator promises beyond the contract: several streams, no allocation once warm, reports of the
// host's communicator. On GPUs where there are any (stand-ins in the emulated build, which check the order of streams),
// else on queued streams of the CPU.
#include <gmock/gmock.h>

#include <thread>

#include "runtime/device/cpu/cpu_device.h"
#include "runtime/device/cuda/cuda_device.h"
#include "tests/runtime/comm/contract_data.h"
#include "tests/support/run_ranks.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kStagingBytes = size_t{4} << 10;
constexpr int64_t kCount = 5000;  // five chunks

ThreadRankOptions staged(double timeout_seconds = 60) {
  const bool gpus = num_cuda_devices() > 0;
  return {.timeout_seconds = timeout_seconds,
          .queued_streams = true,
          .device = {.kind = gpus ? DeviceKind::kCuda : DeviceKind::kCpu,
                     .backend = DeviceBackend::kStaged,
                     .staging_bytes = kStagingBytes}};
}

// What is put on the stream now happens later. (On stand-in GPUs the delays come from ASHLAR_STANDIN_DELAYS.)
void slow_down(Stream& stream) {
  if (stream.device().kind() == DeviceKind::kCpu) {
    cpu_stream(stream).enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
  }
}

// Operations of different streams go through the same chunks, in the order in which they were started.
TEST(Staged, OperationsOfSeveralStreams) {
  run_ranks(
      2,
      [](RankContext& rank) {
        Communicator& world = rank.device_world;
        const auto a = rank.device.create_stream();
        const auto b = rank.device.create_stream(StreamPriority::kCommunication);
        const auto all = operands<float>(world, kCount);
        const std::vector<float>& mine = all[static_cast<size_t>(world.rank())];
        const std::vector<float> sum = reduced(all, ReduceOp::kSum);
        const OnDevice<float> x(rank, *a, mine);
        const OnDevice<float> y(rank, *b, mine);
        const OnDevice<float> z(rank, *b, mine);
        world.all_reduce(view(x), ReduceOp::kSum, *a);
        world.all_reduce(view(y), ReduceOp::kSum, *b);
        world.broadcast(view(z), 1, *b);
        EXPECT_TRUE(same(x.read(), sum));
        EXPECT_TRUE(same(y.read(), sum));
        EXPECT_TRUE(same(z.read(), all[1]));
      },
      staged());
}

// What one stream has reduced, another one uses: wait() puts it behind.
TEST(Staged, WaitOrdersAnotherStream) {
  run_ranks(
      2,
      [](RankContext& rank) {
        Communicator& world = rank.device_world;
        const auto compute = rank.device.create_stream();
        const auto traffic = rank.device.create_stream(StreamPriority::kCommunication);
        const auto all = operands<float>(world, kCount);
        const OnDevice<float> x(rank, *traffic, all[static_cast<size_t>(world.rank())]);
        const OnDevice<float> y(rank, *compute, std::vector<float>(kCount));
        world.all_reduce(view(x), ReduceOp::kSum, *traffic).wait(*compute);
        compute->copy(view(y).data, view(x).data, view(x).bytes());
        EXPECT_TRUE(same(y.read(), reduced(all, ReduceOp::kSum)));

        const int peer = 1 - world.rank();
        const Transfer legs[] = {{Transfer::Direction::kSend, peer, 1, view(y)},
                                 {Transfer::Direction::kReceive, peer, 1, view(x)}};
        Work work = world.exchange(legs, *compute);
        work.wait(*compute);
        work.wait(*traffic);  // both may use it now
        EXPECT_TRUE(same(x.read(), reduced(all, ReduceOp::kSum)));
      },
      staged());
}

// A receive that nobody waits for on a stream still ends in place, before its memory is used again.
TEST(Staged, WaitHostIsEnough) {
  run_ranks(
      2,
      [](RankContext& rank) {
        Communicator& world = rank.device_world;
        const auto stream = rank.device.create_stream();
        const OnDevice<float> mine(rank, *stream, operand<float>(world.rank(), kCount));
        const OnDevice<float> theirs(rank, *stream, std::vector<float>(kCount));
        const int peer = 1 - world.rank();
        const Transfer legs[] = {{Transfer::Direction::kSend, peer, 1, view(mine)},
                                 {Transfer::Direction::kReceive, peer, 1, view(theirs)}};
        world.exchange(legs, *stream).wait_host();
        EXPECT_TRUE(same(theirs.read(), operand<float>(peer, kCount)));
      },
      staged());
}

// Memory that an exchange went through is used again only when the copies from and to it are done, whichever streams
// they are on.
TEST(Staged, MessagesReuseMemoryInOrder) {
  run_ranks(
      2,
      [](RankContext& rank) {
        Communicator& world = rank.device_world;
        const auto a = rank.device.create_stream();
        const auto b = rank.device.create_stream(StreamPriority::kCommunication);
        const int peer = 1 - world.rank();
        const OnDevice<float> first(rank, *a, operand<float>(world.rank(), kCount, 1));
        const OnDevice<float> second(rank, *a, operand<float>(world.rank(), kCount, 2));
        const OnDevice<float> third(rank, *a, operand<float>(world.rank(), kCount, 3));
        const OnDevice<float> in_1(rank, *b, std::vector<float>(kCount));
        const OnDevice<float> in_2(rank, *b, std::vector<float>(kCount));
        const OnDevice<float> in_3(rank, *b, std::vector<float>(kCount));
        const auto send = [&](const OnDevice<float>& x, Stream& after) {
          const Transfer leg{Transfer::Direction::kSend, peer, 1, view(x)};
          return world.exchange({&leg, 1}, after);
        };
        const auto receive = [&](const OnDevice<float>& x, Stream& after) {
          const Transfer leg{Transfer::Direction::kReceive, peer, 1, view(x)};
          return world.exchange({&leg, 1}, after);
        };
        std::vector<Work> sent = {send(first, *a), send(second, *a), send(third, *a)};
        slow_down(*b);
        receive(in_1, *b).wait(*b);  // copied up late ...
        receive(in_2, *b).wait(*b);  // ... from memory that the next message would like to have
        Work last = receive(in_3, *a);
        for (Work& work : sent) {
          work.wait(*a);
        }
        last.wait(*b);
        Work again = send(first, *a);  // and a message that goes down through it, on another stream
        receive(in_2, *b).wait(*b);
        again.wait(*a);
        EXPECT_TRUE(same(in_1.read(), operand<float>(peer, kCount, 1)));
        EXPECT_TRUE(same(in_3.read(), operand<float>(peer, kCount, 3)));
        EXPECT_TRUE(same(in_2.read(), operand<float>(peer, kCount, 1)));
      },
      staged());
}

// A receive is started behind what its target was used for, and may be waited for on another stream.
TEST(Staged, ReceivesWaitForTheOldUseOfTheirTarget) {
  run_ranks(
      2,
      [](RankContext& rank) {
        Communicator& world = rank.device_world;
        const auto compute = rank.device.create_stream();
        const auto traffic = rank.device.create_stream(StreamPriority::kCommunication);
        const int peer = 1 - world.rank();
        const std::vector<float> mine = operand<float>(world.rank(), kCount);
        const OnDevice<float> out(rank, *traffic, mine);
        const OnDevice<float> x(rank, *compute, mine);
        const OnDevice<float> copy(rank, *compute, std::vector<float>(kCount));
        x.read();
        const Transfer send{Transfer::Direction::kSend, peer, 1, view(out)};
        const Transfer receive{Transfer::Direction::kReceive, peer, 1, view(x)};
        Work sent = world.exchange({&send, 1}, *traffic);
        slow_down(*compute);
        compute->copy(view(copy).data, view(x).data, view(x).bytes());
        Work received = world.exchange({&receive, 1}, *compute);
        received.wait(*traffic);
        received.wait(*compute);
        sent.wait(*compute);
        EXPECT_TRUE(same(copy.read(), mine));
        EXPECT_TRUE(same(x.read(), operand<float>(peer, kCount)));
      },
      staged());
}

// Waiting for an exchange whose place another one has taken long ago.
TEST(Staged, TheFirstOfMoreExchangesThanTheRingHolds) {
  run_ranks(
      2,
      [](RankContext& rank) {
        Communicator& world = rank.device_world;
        const auto stream = rank.device.create_stream();
        constexpr int kExchanges = 150;
        const int peer = 1 - world.rank();
        const OnDevice<float> out(rank, *stream, std::vector<float>(1, 3.0f));
        const OnDevice<float> in(rank, *stream, std::vector<float>(kExchanges));
        std::vector<Work> works;
        for (int turn = 0; turn < kExchanges; ++turn) {
          const Transfer legs[] = {{Transfer::Direction::kSend, peer, 1, view(out)},
                                   {Transfer::Direction::kReceive, peer, 1, view(in).slice(turn, turn + 1)}};
          works.push_back(world.exchange(legs, *stream));
        }
        works.front().wait(*stream);
        EXPECT_EQ(in.read().front(), 3.0f);
        for (Work& work : works) {
          work.wait(*stream);
        }
        EXPECT_EQ(in.read().back(), 3.0f);
      },
      staged());
}

TEST(Staged, AllocatesNothingOnceWarm) {
  run_ranks(
      2,
      [](RankContext& rank) {
        const auto stream = rank.device.create_stream();
        const auto group = rank.device_world.split(0, rank.world.rank(), "group");
        const OnDevice<float> x(rank, *stream, std::vector<float>(kCount));
        const OnDevice<float> part(rank, *stream, std::vector<float>(kCount / 2));
        const int peer = 1 - group->rank();
        const Transfer legs[] = {{Transfer::Direction::kSend, peer, 1, view(part)},
                                 {Transfer::Direction::kReceive, peer, 1, view(x).slice(0, kCount / 2)}};
        const auto operations = [&] {
          for (int turn = 0; turn < 5; ++turn) {
            Work first = group->exchange(legs, *stream);
            group->all_reduce(view(x).slice(kCount / 2, kCount), ReduceOp::kSum, *stream).wait(*stream);
            first.wait(*stream);
            group->reduce_scatter(view(part), view(x), ReduceOp::kSum, *stream).wait(*stream);
            group->all_gather(view(x), view(part), *stream).wait(*stream);
          }
        };
        operations();
        const int64_t before = rank.device.num_allocations();
        operations();
        EXPECT_EQ(rank.device.num_allocations(), before);
        stream->synchronize();
      },
      staged());
}

// The world may share chunks with groups split from it, and counts its own operations.
TEST(Staged, GroupsCountTheirOwnOperations) {
  run_ranks(
      4,
      [](RankContext& rank) {
        const auto stream = rank.device.create_stream();
        const auto pair = rank.device_world.split(rank.world.rank() / 2, 0, "pair");
        const OnDevice<float> x(rank, *stream, std::vector<float>(kCount, 1.0f));
        const int64_t host_before = rank.world.num_ops(OpKind::kAllReduce);
        pair->all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
        rank.device_world.all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
        EXPECT_EQ(x.read().back(), 8.0f);
        EXPECT_EQ(pair->num_ops(OpKind::kAllReduce), 1);
        EXPECT_EQ(pair->bytes_sent(OpKind::kAllReduce), kCount * 4);
        EXPECT_EQ(rank.device_world.num_ops(OpKind::kAllReduce), 1);
        EXPECT_EQ(rank.world.num_ops(OpKind::kAllReduce), host_before);
      },
      staged());
}

TEST(Staged, ARankThatNeverComesIsNamed) {
  try {
    run_ranks(
        2,
        [](RankContext& rank) {
          const auto stream = rank.device.create_stream();
          const auto group = rank.device_world.split(0, rank.world.rank(), "tensor");
          const OnDevice<float> x(rank, *stream, std::vector<float>(kCount));
          if (rank.world.rank() == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(900));
            rank.world.barrier();  // throws: the job is over
          }
          group->all_reduce(view(x), ReduceOp::kSum, *stream);
        },
        staged(0.3));
    FAIL() << "nothing was reported";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTimeout);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tensor (host)"), HasSubstr("rank 1"), HasSubstr("all_reduce")));
  }
}

}  // namespace
}  // namespace ashlar
