#include <gtest/gtest.h>

#include "tests/runtime/comm/contract_cases.h"
#include "tests/runtime/comm/contract_data.h"

namespace ashlar {
namespace {

using enum Transfer::Direction;

int next(const Communicator& comm) {
  return (comm.rank() + 1) % comm.size();
}
int previous(const Communicator& comm) {
  return (comm.rank() + comm.size() - 1) % comm.size();
}

// A ring in which everybody sends before it receives: rendezvous messages would hang if exchange() waited. A group of
// one sends to itself.
void ring_of_any_size(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  for (const int64_t count : {0, 1, 1000, 131072 + 1}) {
    std::vector<float> mine = operand<float>(rank.world.rank(), count);
    std::vector<float> theirs(static_cast<size_t>(count));
    const std::vector<Transfer> legs = {{kSend, next(rank.world), 7, view(mine)},
                                        {kReceive, previous(rank.world), 7, view(theirs)}};
    rank.world.exchange(legs, *stream).wait(*stream);
    EXPECT_TRUE(same(theirs, operand<float>(previous(rank.world), count)));
  }
}

// Pipeline neighbours in the fixed order of a schedule: all exchange activations of 512 KiB (beyond eager limits)
// forward and gradients backward, sends first, in separate exchanges.
void neighbours_send_both_ways_before_they_receive(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int64_t kCount = 131072;
  constexpr int kMicrobatches = 2;
  Communicator& world = rank.world;
  const bool has_next = world.rank() + 1 < world.size();
  const bool has_previous = world.rank() > 0;
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    std::vector<float> activation = operand<float>(world.rank(), kCount, static_cast<uint64_t>(microbatch));
    std::vector<float> gradient = operand<float>(world.rank(), kCount, static_cast<uint64_t>(100 + microbatch));
    std::vector<float> from_previous(kCount);
    std::vector<float> from_next(kCount);
    std::vector<Work> works;
    const auto start = [&](Transfer transfer) { works.push_back(world.exchange({&transfer, 1}, *stream)); };
    if (has_next) {
      start({kSend, world.rank() + 1, 1, view(activation)});
    }
    if (has_previous) {
      start({kSend, world.rank() - 1, 2, view(gradient)});
      start({kReceive, world.rank() - 1, 1, view(from_previous)});
    }
    if (has_next) {
      start({kReceive, world.rank() + 1, 2, view(from_next)});
    }
    for (Work& work : works) {
      work.wait(*stream);
    }
    if (has_previous) {
      ASSERT_TRUE(same(from_previous, operand<float>(world.rank() - 1, kCount, static_cast<uint64_t>(microbatch))));
    }
    if (has_next) {
      ASSERT_TRUE(same(from_next, operand<float>(world.rank() + 1, kCount, static_cast<uint64_t>(100 + microbatch))));
    }
  }
}

void legs_pair_in_their_order(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int kLegs = 12;
  std::vector<std::vector<int64_t>> out(kLegs);
  std::vector<std::vector<int64_t>> in(kLegs);
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (int leg = 0; leg < kLegs; ++leg) {
    const size_t count = leg % 3 == 0 ? 40000 : static_cast<size_t>(leg);
    out[static_cast<size_t>(leg)].assign(count, rank.world.rank() * 1000 + leg);
    in[static_cast<size_t>(leg)].resize(count);
    sends.push_back({kSend, next(rank.world), leg, view(out[static_cast<size_t>(leg)])});
    receives.push_back({kReceive, previous(rank.world), leg, view(in[static_cast<size_t>(leg)])});
  }
  // Sends in two exchanges, receives in three; works are waited for in another order than they were started.
  const std::span<const Transfer> all_sends(sends);
  const std::span<const Transfer> all_receives(receives);
  Work send_first = rank.world.exchange(all_sends.first(5), *stream);
  Work receive_first = rank.world.exchange(all_receives.first(2), *stream);
  Work receive_middle = rank.world.exchange(all_receives.subspan(2, 7), *stream);
  Work send_rest = rank.world.exchange(all_sends.subspan(5), *stream);
  Work receive_rest = rank.world.exchange(all_receives.subspan(9), *stream);
  receive_rest.wait(*stream);
  send_rest.wait(*stream);
  receive_first.wait(*stream);
  receive_middle.wait(*stream);
  send_first.wait(*stream);
  receive_rest.wait_host();  // a second wait is harmless
  for (int leg = 0; leg < kLegs; ++leg) {
    for (const int64_t value : in[static_cast<size_t>(leg)]) {
      ASSERT_EQ(value, previous(rank.world) * 1000 + leg);
    }
  }
}

void collectives_run_while_messages_are_under_way(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int64_t kCount = 150000;
  std::vector<float> mine = operand<float>(rank.world.rank(), kCount);
  std::vector<float> theirs(kCount);
  const Transfer send{kSend, next(rank.world), 0, view(mine)};
  const Transfer receive{kReceive, previous(rank.world), 0, view(theirs)};
  Work sent = rank.world.exchange({&send, 1}, *stream);
  std::vector<float> x(10000, 1.0f);
  rank.world.all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
  Work received = rank.world.exchange({&receive, 1}, *stream);
  rank.world.barrier();
  sent.wait(*stream);
  rank.world.barrier();
  received.wait(*stream);
  EXPECT_EQ(x.back(), static_cast<float>(rank.world.size()));
  EXPECT_TRUE(same(theirs, operand<float>(previous(rank.world), kCount)));
}

void more_exchanges_than_the_ring_holds(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int kExchanges = 400;
  std::vector<int64_t> out(kExchanges);
  std::vector<int64_t> in(kExchanges);
  std::vector<Work> works;
  for (int turn = 0; turn < kExchanges; ++turn) {
    out[static_cast<size_t>(turn)] = rank.world.rank() * 1000 + turn;
    const std::vector<Transfer> legs = {{kReceive, previous(rank.world), turn, view(in).slice(turn, turn + 1)},
                                        {kSend, next(rank.world), turn, view(out).slice(turn, turn + 1)}};
    works.push_back(rank.world.exchange(legs, *stream));
  }
  for (Work& work : works) {
    work.wait(*stream);
  }
  for (int turn = 0; turn < kExchanges; ++turn) {
    ASSERT_EQ(in[static_cast<size_t>(turn)], previous(rank.world) * 1000 + turn);
  }
}

void everybody_to_everybody(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int64_t kCount = 3000;
  const int size = rank.world.size();
  std::vector<std::vector<float>> in(static_cast<size_t>(size), std::vector<float>(kCount));
  std::vector<std::vector<float>> out;
  for (int to = 0; to < size; ++to) {
    out.push_back(operand<float>(rank.world.rank(), kCount, static_cast<uint64_t>(to)));
  }
  std::vector<Transfer> legs;
  for (int peer = 0; peer < size; ++peer) {
    legs.push_back({kSend, peer, 3, view(out[static_cast<size_t>(peer)])});
    legs.push_back({kReceive, peer, 3, view(in[static_cast<size_t>(peer)])});
  }
  rank.world.exchange(legs, *stream).wait(*stream);
  for (int from = 0; from < size; ++from) {
    EXPECT_TRUE(
        same(in[static_cast<size_t>(from)], operand<float>(from, kCount, static_cast<uint64_t>(rank.world.rank()))));
  }
}

void exchanged_bytes_are_counted(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  const std::unique_ptr<Communicator> comm = rank.world.split(0, rank.world.rank(), "counted");
  std::vector<float> mine(8);
  std::vector<float> theirs(8);
  const std::vector<Transfer> legs = {{kSend, next(*comm), 0, view(mine)},
                                      {kReceive, previous(*comm), 0, view(theirs)}};
  comm->exchange(legs, *stream).wait(*stream);
  comm->exchange({}, *stream).wait(*stream);
  EXPECT_EQ(comm->num_ops(OpKind::kExchange), 2);
  EXPECT_EQ(comm->bytes_sent(OpKind::kExchange), 32);
}

}  // namespace

std::vector<ContractCase> exchange_cases() {
  return {{"ring_of_any_size", ring_of_any_size},
          {"neighbours_send_both_ways_before_they_receive", neighbours_send_both_ways_before_they_receive},
          {"legs_pair_in_their_order", legs_pair_in_their_order},
          {"collectives_run_while_messages_are_under_way", collectives_run_while_messages_are_under_way},
          {"more_exchanges_than_the_ring_holds", more_exchanges_than_the_ring_holds},
          {"everybody_to_everybody", everybody_to_everybody},
          {"exchanged_bytes_are_counted", exchanged_bytes_are_counted}};
}

}  // namespace ashlar
