#include <gtest/gtest.h>

#include <deque>
#include <numeric>

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
    const OnDevice<float> mine(rank, *stream, operand<float>(rank.device_world.rank(), count));
    const OnDevice<float> theirs(rank, *stream, std::vector<float>(static_cast<size_t>(count)));
    const std::vector<Transfer> legs = {{kSend, next(rank.device_world), 7, view(mine)},
                                        {kReceive, previous(rank.device_world), 7, view(theirs)}};
    rank.device_world.exchange(legs, *stream).wait(*stream);
    EXPECT_TRUE(same(theirs.read(), operand<float>(previous(rank.device_world), count)));
  }
}

// Pipeline neighbours in the fixed order of a schedule: all exchange activations of 512 KiB (beyond eager limits)
// forward and gradients backward, sends first, in separate exchanges.
void neighbours_send_both_ways_before_they_receive(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int64_t kCount = 131072;
  constexpr int kMicrobatches = 2;
  Communicator& world = rank.device_world;
  const bool has_next = world.rank() + 1 < world.size();
  const bool has_previous = world.rank() > 0;
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    const auto salt = static_cast<uint64_t>(microbatch);
    const OnDevice<float> activation(rank, *stream, operand<float>(world.rank(), kCount, salt));
    const OnDevice<float> gradient(rank, *stream, operand<float>(world.rank(), kCount, 100 + salt));
    const OnDevice<float> from_previous(rank, *stream, std::vector<float>(kCount));
    const OnDevice<float> from_next(rank, *stream, std::vector<float>(kCount));
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
      ASSERT_TRUE(same(from_previous.read(), operand<float>(world.rank() - 1, kCount, salt)));
    }
    if (has_next) {
      ASSERT_TRUE(same(from_next.read(), operand<float>(world.rank() + 1, kCount, 100 + salt)));
    }
  }
}

void legs_pair_in_their_order(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int kLegs = 12;
  std::deque<OnDevice<int64_t>> out;
  std::deque<OnDevice<int64_t>> in;
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  for (int leg = 0; leg < kLegs; ++leg) {
    const size_t count = leg % 3 == 0 ? 40000 : static_cast<size_t>(leg);
    out.emplace_back(rank, *stream, std::vector<int64_t>(count, rank.device_world.rank() * 1000 + leg));
    in.emplace_back(rank, *stream, std::vector<int64_t>(count));
    sends.push_back({kSend, next(rank.device_world), leg, view(out.back())});
    receives.push_back({kReceive, previous(rank.device_world), leg, view(in.back())});
  }
  // Sends in two exchanges, receives in three; works are waited for in another order than they were started.
  const std::span<const Transfer> all_sends(sends);
  const std::span<const Transfer> all_receives(receives);
  Work send_first = rank.device_world.exchange(all_sends.first(5), *stream);
  Work receive_first = rank.device_world.exchange(all_receives.first(2), *stream);
  Work receive_middle = rank.device_world.exchange(all_receives.subspan(2, 7), *stream);
  Work send_rest = rank.device_world.exchange(all_sends.subspan(5), *stream);
  Work receive_rest = rank.device_world.exchange(all_receives.subspan(9), *stream);
  receive_rest.wait(*stream);
  send_rest.wait(*stream);
  receive_first.wait(*stream);
  receive_middle.wait(*stream);
  send_first.wait(*stream);
  receive_rest.wait_host();  // a second wait is harmless
  for (int leg = 0; leg < kLegs; ++leg) {
    for (const int64_t value : in[static_cast<size_t>(leg)].read()) {
      ASSERT_EQ(value, previous(rank.device_world) * 1000 + leg);
    }
  }
}

void collectives_run_while_messages_are_under_way(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int64_t kCount = 150000;
  const OnDevice<float> mine(rank, *stream, operand<float>(rank.device_world.rank(), kCount));
  const OnDevice<float> theirs(rank, *stream, std::vector<float>(kCount));
  const Transfer send{kSend, next(rank.device_world), 0, view(mine)};
  const Transfer receive{kReceive, previous(rank.device_world), 0, view(theirs)};
  Work sent = rank.device_world.exchange({&send, 1}, *stream);
  const OnDevice<float> x(rank, *stream, std::vector<float>(10000, 1.0f));
  rank.device_world.all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
  Work received = rank.device_world.exchange({&receive, 1}, *stream);
  rank.device_world.barrier();
  sent.wait(*stream);
  rank.device_world.barrier();
  received.wait(*stream);
  EXPECT_EQ(x.read().back(), static_cast<float>(rank.device_world.size()));
  EXPECT_TRUE(same(theirs.read(), operand<float>(previous(rank.device_world), kCount)));
}

void more_exchanges_than_the_ring_holds(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int kExchanges = 400;
  std::vector<int64_t> values(kExchanges);
  std::iota(values.begin(), values.end(), rank.device_world.rank() * 1000);
  const OnDevice<int64_t> out(rank, *stream, values);
  const OnDevice<int64_t> in(rank, *stream, std::vector<int64_t>(kExchanges));
  std::vector<Work> works;
  for (int turn = 0; turn < kExchanges; ++turn) {
    const std::vector<Transfer> legs = {{kReceive, previous(rank.device_world), turn, view(in).slice(turn, turn + 1)},
                                        {kSend, next(rank.device_world), turn, view(out).slice(turn, turn + 1)}};
    works.push_back(rank.device_world.exchange(legs, *stream));
  }
  for (Work& work : works) {
    work.wait(*stream);
  }
  const std::vector<int64_t> got = in.read();
  for (int turn = 0; turn < kExchanges; ++turn) {
    ASSERT_EQ(got[static_cast<size_t>(turn)], previous(rank.device_world) * 1000 + turn);
  }
}

void everybody_to_everybody(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr int64_t kCount = 3000;
  const int size = rank.device_world.size();
  std::deque<OnDevice<float>> in;
  std::deque<OnDevice<float>> out;
  for (int to = 0; to < size; ++to) {
    in.emplace_back(rank, *stream, std::vector<float>(kCount));
    out.emplace_back(rank, *stream, operand<float>(rank.device_world.rank(), kCount, static_cast<uint64_t>(to)));
  }
  std::vector<Transfer> legs;
  for (int peer = 0; peer < size; ++peer) {
    legs.push_back({kSend, peer, 3, view(out[static_cast<size_t>(peer)])});
    legs.push_back({kReceive, peer, 3, view(in[static_cast<size_t>(peer)])});
  }
  rank.device_world.exchange(legs, *stream).wait(*stream);
  for (int from = 0; from < size; ++from) {
    EXPECT_TRUE(same(in[static_cast<size_t>(from)].read(),
                     operand<float>(from, kCount, static_cast<uint64_t>(rank.device_world.rank()))));
  }
}

void exchanged_bytes_are_counted(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  const std::unique_ptr<Communicator> comm = rank.device_world.split(0, rank.device_world.rank(), "counted");
  const OnDevice<float> mine(rank, *stream, std::vector<float>(8));
  const OnDevice<float> theirs(rank, *stream, std::vector<float>(8));
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
