// What the stand-in for NCCL computes, and what it finds wrong, each with the operation's name.
#include <cuda_bf16.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "tests/emulation/standins/cudart/clean_exit.h"
#include "tests/emulation/standins/nccl/nccl_ranks.h"

namespace ashlar::standin {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    Config config;
    config.devices.resize(8);
    reset(config);
    configure_nccl({});
  }
  void TearDown() override {
    EXPECT_THAT(nccl_leaks(), testing::IsEmpty());
    configure_nccl({});
  }
};

// Numbers whose sums depend on the order.
std::vector<float> numbers(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] =
        static_cast<float>((rank % 2 == 0 ? 1.0 : -3.0) * (1.0 + static_cast<double>(i % 977) / 977) * (rank + 1));
  }
  return values;
}

std::vector<float> sums(int size, size_t count) {
  std::vector<float> values = numbers(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> more = numbers(rank, count);
    std::transform(values.begin(), values.end(), more.begin(), values.begin(), std::plus());
  }
  return values;
}

TEST_F(Nccl, CollectivesOfEverySize) {
  for (const int size : {1, 2, 3, 8}) {
    run_nccl_ranks(size, [](NcclRank& me) {
      const auto ranks = static_cast<size_t>(me.size);
      for (const size_t count : {size_t{1}, size_t{33}, size_t{40000}}) {
        const std::vector<float> sum = sums(me.size, count * ranks);
        const auto mine = static_cast<std::ptrdiff_t>(static_cast<size_t>(me.rank) * count);
        DeviceArray<float> x(numbers(me.rank, count * ranks));
        DeviceArray<float> part(std::vector<float>(count, 0));
        DeviceArray<float> all(std::vector<float>(count * ranks, 0));
        EXPECT_EQ(ncclReduceScatter(x.data(), part.data(), count, ncclFloat32, ncclSum, me.comm, me.stream),
                  ncclSuccess);
        EXPECT_EQ(ncclAllGather(part.data(), all.data(), count, ncclFloat32, me.comm, me.stream), ncclSuccess);
        EXPECT_EQ(ncclAllReduce(x.data(), x.data(), x.count(), ncclFloat32, ncclSum, me.comm, me.stream), ncclSuccess);
        me.synchronize();
        EXPECT_EQ(part.values(),
                  std::vector<float>(sum.begin() + mine, sum.begin() + mine + static_cast<std::ptrdiff_t>(count)));
        EXPECT_EQ(all.values(), sum);
        EXPECT_EQ(x.values(), sum);
        for (int root = 0; root < me.size; ++root) {
          DeviceArray<float> b(numbers(me.rank, count));
          EXPECT_EQ(ncclBroadcast(b.data(), b.data(), count, ncclFloat32, root, me.comm, me.stream), ncclSuccess);
          me.synchronize();
          EXPECT_EQ(b.values(), numbers(root, count));
        }
      }
    });
  }
}

TEST_F(Nccl, Bf16AccumulatesInFp32AndIntegersAreExact) {
  run_nccl_ranks(4, [](NcclRank& me) {
    DeviceArray<__nv_bfloat16> x({__float2bfloat16(me.rank == 0 ? 256.0f : 1.0f)});
    DeviceArray<int64_t> y({(int64_t{1} << 55) + me.rank});
    EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 1, ncclBfloat16, ncclSum, me.comm, me.stream), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(y.data(), y.data(), 1, ncclInt64, ncclMax, me.comm, me.stream), ncclSuccess);
    me.synchronize();
    EXPECT_EQ(__bfloat162float(x.values()[0]), __bfloat162float(__float2bfloat16(259.0f)));
    EXPECT_EQ(y.values()[0], (int64_t{1} << 55) + 3);
  });
}

TEST_F(Nccl, MessagesInGroups) {
  run_nccl_ranks(4, [](NcclRank& me) {
    constexpr size_t kCount = 30000;  // several pieces
    std::vector<std::unique_ptr<DeviceArray<float>>> in;
    DeviceArray<float> out(numbers(me.rank, kCount));
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < me.size; ++peer) {  // itself too
      in.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(kCount, 0)));
      EXPECT_EQ(ncclSend(out.data(), kCount, ncclFloat32, peer, me.comm, me.stream), ncclSuccess);
      EXPECT_EQ(ncclRecv(in.back()->data(), kCount, ncclFloat32, peer, me.comm, me.stream), ncclSuccess);
    }
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    me.synchronize();
    for (int peer = 0; peer < me.size; ++peer) {
      EXPECT_EQ(in[static_cast<size_t>(peer)]->values(), numbers(peer, kCount));
    }
  });
}

TEST_F(Nccl, TwoMessagesToOnePeerKeepTheirOrder) {
  run_nccl_ranks(2, [](NcclRank& me) {
    DeviceArray<float> first(numbers(me.rank, 20000));
    DeviceArray<float> second(numbers(me.rank + 2, 3));
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (DeviceArray<float>* data : {&first, &second}) {
      EXPECT_EQ(me.rank == 0 ? ncclSend(data->data(), data->count(), ncclFloat32, 1, me.comm, me.stream)
                             : ncclRecv(data->data(), data->count(), ncclFloat32, 0, me.comm, me.stream),
                ncclSuccess);
    }
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    me.synchronize();
    EXPECT_EQ(first.values(), numbers(0, 20000));
    EXPECT_EQ(second.values(), numbers(2, 3));
  });
}

TEST_F(Nccl, SplitInTheOrderOfKeysAndInTheBackground) {
  run_nccl_ranks(4, [](NcclRank& me) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "pair";
    ncclComm_t child = nullptr;
    ASSERT_EQ(ncclCommSplit(me.comm, me.rank % 2, -me.rank, &child, &config), ncclSuccess);
    int rank = -1;
    EXPECT_EQ(ncclCommUserRank(child, &rank), ncclSuccess);
    EXPECT_EQ(rank, me.rank < 2 ? 1 : 0);
    const NcclRank pair{.rank = rank, .size = 2, .comm = child, .stream = make_stream()};
    DeviceArray<float> x({static_cast<float>(me.rank)});
    ncclResult_t started = ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, child, pair.stream);
    EXPECT_EQ(started, ncclInProgress);  // the first one connects
    while (pair.async_error() == ncclInProgress) {
      std::this_thread::yield();
    }
    pair.synchronize();
    EXPECT_EQ(x.values()[0], me.rank % 2 == 0 ? 2.0f : 4.0f);
    EXPECT_EQ(ncclCommFinalize(child), ncclInProgress);
    while (pair.async_error() == ncclInProgress) {
      std::this_thread::yield();
    }
    EXPECT_EQ(ncclCommDestroy(child), ncclSuccess);
    EXPECT_EQ(cudaStreamDestroy(pair.stream), cudaSuccess);
  });
}

// Runs `body` on two ranks, aborts, and returns what was reported.
std::string reports_of(const std::function<void(NcclRank&)>& body, ncclResult_t expected = ncclInvalidUsage) {
  run_nccl_ranks(2, [&](NcclRank& me) {
    body(me);
    EXPECT_EQ(me.wait_for_error(), expected);
    EXPECT_EQ(ncclCommAbort(me.comm), ncclSuccess);
    me.comm = nullptr;
    cudaStreamSynchronize(me.stream);
  });
  return all_reports();
}

TEST_F(Nccl, DifferentCallsAreNamed) {
  const auto on = [&](NcclRank& me, auto odd, auto even) {
    DeviceArray<float> x(numbers(me.rank, 64));
    EXPECT_EQ(me.rank == 1 ? odd(me, x.data()) : even(me, x.data()), ncclSuccess);
    me.wait_for_error();
    ncclCommAbort(me.comm);
    me.comm = nullptr;
    cudaStreamSynchronize(me.stream);
  };
  const auto all_reduce = [](size_t count, ncclDataType_t type, ncclRedOp_t op) {
    return [=](NcclRank& me, float* x) { return ncclAllReduce(x, x, count, type, op, me.comm, me.stream); };
  };
  const auto broadcast = [](int root) {
    return [=](NcclRank& me, float* x) { return ncclBroadcast(x, x, 8, ncclFloat32, root, me.comm, me.stream); };
  };
  const auto usual = all_reduce(8, ncclFloat32, ncclSum);
  run_nccl_ranks(2, [&](NcclRank& me) { on(me, broadcast(0), usual); });
  EXPECT_THAT(all_reports(), AllOf(HasSubstr("ncclAllReduce #1 of 8 ncclFloat32 (sum)"),
                                   HasSubstr("ncclBroadcast #1 of 8 ncclFloat32 from rank 0")));
  run_nccl_ranks(2, [&](NcclRank& me) { on(me, all_reduce(9, ncclFloat32, ncclSum), usual); });
  EXPECT_THAT(all_reports(), HasSubstr("ncclAllReduce #1 of 9 ncclFloat32 (sum)"));
  run_nccl_ranks(2, [&](NcclRank& me) { on(me, all_reduce(8, ncclInt32, ncclSum), usual); });
  EXPECT_THAT(all_reports(), HasSubstr("ncclAllReduce #1 of 8 ncclInt32 (sum)"));
  run_nccl_ranks(2, [&](NcclRank& me) { on(me, all_reduce(8, ncclFloat32, ncclMax), usual); });
  EXPECT_THAT(all_reports(), HasSubstr("ncclAllReduce #1 of 8 ncclFloat32 (max)"));
  run_nccl_ranks(2, [&](NcclRank& me) { on(me, broadcast(1), broadcast(0)); });
  EXPECT_THAT(all_reports(), HasSubstr("ncclBroadcast #1 of 8 ncclFloat32 from rank 1"));
}

TEST_F(Nccl, MessagesOfDifferentSizesAreNamed) {
  const std::string reports = reports_of([](NcclRank& me) {
    static float* memory[2];
    cudaMalloc(reinterpret_cast<void**>(&memory[me.rank]), 64);
    EXPECT_EQ(me.rank == 0 ? ncclSend(memory[0], 4, ncclFloat32, 1, me.comm, me.stream)
                           : ncclRecv(memory[1], 5, ncclFloat32, 0, me.comm, me.stream),
              ncclSuccess);
  });
  EXPECT_THAT(reports, AllOf(HasSubstr("ncclRecv #1 of 5 ncclFloat32 from rank 0"),
                             HasSubstr("ncclSend #1 of 4 ncclFloat32 to rank 1")));
  reset({});
}

TEST_F(Nccl, SendWithoutReceiveIsNamed) {
  run_nccl_ranks(2, [](NcclRank& me) {
    DeviceArray<float> x(numbers(me.rank, 8));
    if (me.rank == 0) {
      EXPECT_EQ(ncclSend(x.data(), 8, ncclFloat32, 1, me.comm, me.stream), ncclSuccess);
      EXPECT_EQ(me.wait_for_error(), ncclInvalidUsage);
    } else {
      EXPECT_NE(ncclCommFinalize(me.comm), ncclSuccess);
    }
    ncclCommAbort(me.comm);
    me.comm = nullptr;
    cudaStreamSynchronize(me.stream);
  });
  EXPECT_THAT(all_reports(), HasSubstr("rank 0 of 2 waits in ncclSend #1 of 8 ncclFloat32 to rank 1 for rank 1, which "
                                       "has called ncclCommFinalize"));
}

TEST_F(Nccl, MissingRankIsNamedAtTheTimeout) {
  configure_nccl({.fault = {}, .timeout_seconds = 0.3});
  run_nccl_ranks(3, [](NcclRank& me) {
    DeviceArray<float> x(numbers(me.rank, 8));
    if (me.rank != 2) {
      EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, me.comm, me.stream), ncclSuccess);
    }
    EXPECT_EQ(me.wait_for_error(), ncclSystemError);
    EXPECT_THAT(ncclGetLastError(me.comm),
                AllOf(HasSubstr("waited too long in ncclAllReduce #1"), HasSubstr("rank 2")));
    ncclCommAbort(me.comm);
    me.comm = nullptr;
    me.synchronize();
  });
}

TEST_F(Nccl, AbortedRankIsARemoteErrorToTheOthers) {
  run_nccl_ranks(2, [](NcclRank& me) {
    DeviceArray<float> x(numbers(me.rank, 8));
    if (me.rank == 0) {
      EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, me.comm, me.stream), ncclSuccess);
      EXPECT_EQ(me.wait_for_error(), ncclRemoteError);
    }
    EXPECT_EQ(ncclCommAbort(me.comm), ncclSuccess);
    me.comm = nullptr;
    me.synchronize();
  });
}

TEST_F(Nccl, TwoRanksOnOneDeviceAreRefused) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([=] {
        cudaSetDevice(1);
        ncclComm_t comm = nullptr;
        EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, nullptr), ncclInvalidUsage);
        ncclCommAbort(comm);
      });
    }
  }
  EXPECT_THAT(all_reports(), HasSubstr("Duplicate GPU detected : rank 0 and rank 1"));
}

TEST_F(Nccl, UseAfterAbortOrByTwoThreadsIsReported) {
  run_nccl_ranks(1, [](NcclRank& me) {
    DeviceArray<float> x(numbers(0, 8));
    const auto all_reduce = [&] {
      return ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, me.comm, me.stream);
    };
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(), ncclSuccess);
    std::jthread([&] {
      cudaSetDevice(0);
      EXPECT_EQ(all_reduce(), ncclInvalidUsage);
      EXPECT_EQ(ncclCommAbort(me.comm), ncclInvalidUsage);
    }).join();
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    me.synchronize();
    EXPECT_EQ(ncclCommAbort(me.comm), ncclSuccess);
    EXPECT_EQ(all_reduce(), ncclInvalidArgument);
    me.comm = nullptr;
  });
  EXPECT_THAT(
      all_reports(),
      AllOf(HasSubstr("ncclAllReduce: communicator \"world\", rank 0 of 1 is in a call or a group of another thread"),
            HasSubstr("ncclCommAbort: communicator \"world\", rank 0 of 1 is in a call or a group"),
            HasSubstr("ncclAllReduce: no such communicator")));
}

TEST_F(Nccl, PlantedFaults) {
  configure_nccl({.fault = {NcclFault::kAsyncError, "world", 1, 2}, .timeout_seconds = 0});
  run_nccl_ranks(2, [](NcclRank& me) {
    DeviceArray<float> x(numbers(me.rank, 8));
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, me.comm, me.stream), ncclSuccess);
    }
    if (me.rank == 1) {
      EXPECT_EQ(me.wait_for_error(), ncclSystemError);
      EXPECT_THAT(ncclGetLastError(me.comm), HasSubstr("planted failure of ncclAllReduce #2"));
    } else {
      EXPECT_EQ(me.wait_for_error(), ncclRemoteError);  // once rank 1 has aborted
    }
    EXPECT_EQ(ncclCommAbort(me.comm), ncclSuccess);
    me.comm = nullptr;
    me.synchronize();
  });
}

// Two streams on one buffer: the report names the collective.
TEST_F(Nccl, MissingWaitAndFreedBufferAreNamed) {
  run_nccl_ranks(2, [](NcclRank& me) {
    DeviceArray<float> x(numbers(me.rank, 8));
    const cudaStream_t compute = make_stream();
    EXPECT_EQ(cudaMemsetAsync(x.data(), 0, 32, compute), cudaSuccess);
    EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, me.comm, me.stream), ncclSuccess);
    cudaStreamSynchronize(me.stream);
    cudaStreamSynchronize(compute);
    ncclCommAbort(me.comm);
    me.comm = nullptr;
    cudaStreamDestroy(compute);
  });
  EXPECT_THAT(all_reports(), AllOf(HasSubstr("missing wait: "), HasSubstr("ncclAllReduce #1 of 8 ncclFloat32 (sum) of "
                                                                          "communicator \"world\", rank ")));
  SetUp();
  run_nccl_ranks(2, [](NcclRank& me) {
    {
      DeviceArray<float> x(numbers(me.rank, 8));
      EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, me.comm, me.stream), ncclSuccess);
    }
    ncclCommAbort(me.comm);
    me.comm = nullptr;
  });
  EXPECT_THAT(all_reports(),
              AllOf(HasSubstr("is freed although the host has not waited for ncclAllReduce #1"), HasSubstr("world")));
  reset({});
}

}  // namespace
}  // namespace ashlar::standin
