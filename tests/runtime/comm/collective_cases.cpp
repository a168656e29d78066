#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/comm/host/streaming_copy.h"
#include "tests/runtime/comm/contract_cases.h"
#include "tests/runtime/comm/contract_data.h"

namespace ashlar {

int64_t contract_buffer_elements = 65536;
bool contract_max_keeps_nan = true;

namespace {

// Around the vector width, the small-message limit (16 KiB) and, for a buffer divided by `share` members,
// several chunks of fp32 plus one.
std::vector<int64_t> counts(int share) {
  return {0, 1, 31, 33, 4096 / share, 4096 / share + 1, 2 * contract_buffer_elements / share + 1};
}

template <typename T>
void check_all_reduce(RankContext& rank, Stream& stream, ReduceOp op) {
  for (const int64_t count : counts(1)) {
    SCOPED_TRACE(count);
    const auto all = operands<T>(rank.device_world, count);
    const OnDevice<T> x(rank, stream, all[static_cast<size_t>(rank.device_world.rank())]);
    rank.device_world.all_reduce(view(x), op, stream).wait(stream);
    EXPECT_TRUE(same(x.read(), reduced(all, op)));
  }
}

void all_reduce_sums_in_rank_order(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  check_all_reduce<float>(rank, *stream, ReduceOp::kSum);
  check_all_reduce<double>(rank, *stream, ReduceOp::kSum);
  check_all_reduce<BFloat16>(rank, *stream, ReduceOp::kSum);
  check_all_reduce<Float16>(rank, *stream, ReduceOp::kSum);
  check_all_reduce<int64_t>(rank, *stream, ReduceOp::kSum);
}

void all_reduce_finds_the_maximum(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  check_all_reduce<float>(rank, *stream, ReduceOp::kMax);
  check_all_reduce<double>(rank, *stream, ReduceOp::kMax);
  check_all_reduce<BFloat16>(rank, *stream, ReduceOp::kMax);
  check_all_reduce<Float16>(rank, *stream, ReduceOp::kMax);
  check_all_reduce<int64_t>(rank, *stream, ReduceOp::kMax);
}

void a_nan_on_any_rank_reaches_all(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  for (int broken = 0; broken < rank.device_world.size(); ++broken) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const float value = rank.device_world.rank() == broken ? std::numeric_limits<float>::quiet_NaN() : 2.0f;
      const OnDevice<float> x(rank, *stream, {1.0f, value});
      rank.device_world.all_reduce(view(x), op, *stream).wait(*stream);
      EXPECT_TRUE(std::isfinite(x.read()[0]));
      EXPECT_TRUE(std::isnan(x.read()[1]) || (op == ReduceOp::kMax && !contract_max_keeps_nan));
    }
  }
}

void int64_sums_are_exact(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  const OnDevice<int64_t> x(rank, *stream, {(int64_t{1} << 55) + 1 + rank.device_world.rank()});
  rank.device_world.all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
  const int64_t size = rank.device_world.size();
  EXPECT_EQ(x.read()[0], ((int64_t{1} << 55) + 1) * size + size * (size - 1) / 2);
}

void bf16_sums_accumulate_in_fp32(RankContext& rank) {
  // 256 + 1 + 1 + ...: in bf16 (8 bits) each addition of 1 would be lost.
  const auto stream = rank.device.create_stream();
  const OnDevice<BFloat16> x(rank, *stream,
                             std::vector<BFloat16>(3, to_bf16(rank.device_world.rank() == 0 ? 256.0f : 1.0f)));
  rank.device_world.all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
  const float expected = 256.0f + static_cast<float>(rank.device_world.size() - 1);
  EXPECT_EQ(to_float(x.read()[2]), to_float(to_bf16(expected)));
}

template <typename T>
void check_all_gather(RankContext& rank, Stream& stream, const std::vector<int64_t>& part_counts) {
  for (const int64_t count : part_counts) {
    SCOPED_TRACE(count);
    const auto all = operands<T>(rank.device_world, count);
    std::vector<T> expected;
    for (const auto& part : all) {
      expected.insert(expected.end(), part.begin(), part.end());
    }
    const std::vector<T>& mine = all[static_cast<size_t>(rank.device_world.rank())];
    const OnDevice<T> in(rank, stream, mine);
    const OnDevice<T> out(rank, stream, std::vector<T>(expected.size()));
    rank.device_world.all_gather(view(out), view(in), stream).wait(stream);
    EXPECT_TRUE(same(out.read(), expected));

    std::vector<T> only_mine(expected.size());
    const int64_t begin = rank.device_world.rank() * count;
    std::copy(mine.begin(), mine.end(), only_mine.begin() + begin);
    const OnDevice<T> in_place(rank, stream, only_mine);
    rank.device_world.all_gather(view(in_place), view(in_place).slice(begin, begin + count), stream).wait(stream);
    EXPECT_TRUE(same(in_place.read(), expected));
  }
}

void all_gather_orders_parts_by_rank(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  const auto whole = counts(1), shared = counts(rank.device_world.size());
  check_all_gather<float>(rank, *stream, whole);
  check_all_gather<double>(rank, *stream, shared);
  check_all_gather<BFloat16>(rank, *stream, shared);
  check_all_gather<Float16>(rank, *stream, shared);
  check_all_gather<int32_t>(rank, *stream, whole);
  check_all_gather<int64_t>(rank, *stream, shared);
  check_all_gather<uint8_t>(rank, *stream, shared);
}

// Large enough for stores that go past the caches, and parts that do not begin on cache lines.
void all_gather_of_large_parts(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  constexpr auto kElements = static_cast<int64_t>(kStreamingBytes / sizeof(BFloat16));
  check_all_gather<BFloat16>(rank, *stream, {kElements / rank.device_world.size() + 33});
}

template <typename T>
void check_reduce_scatter(RankContext& rank, Stream& stream) {
  for (const int64_t count : counts(rank.device_world.size())) {
    SCOPED_TRACE(count);
    const auto all = operands<T>(rank.device_world, count * rank.device_world.size());
    const std::vector<T> sum = reduced(all, ReduceOp::kSum);
    const int64_t begin = rank.device_world.rank() * count;
    const std::vector<T> expected(sum.begin() + begin, sum.begin() + begin + count);
    const OnDevice<T> in(rank, stream, all[static_cast<size_t>(rank.device_world.rank())]);
    const OnDevice<T> out(rank, stream, std::vector<T>(static_cast<size_t>(count)));
    rank.device_world.reduce_scatter(view(out), view(in), ReduceOp::kSum, stream).wait(stream);
    EXPECT_TRUE(same(out.read(), expected));
    EXPECT_TRUE(same(in.read(), all[static_cast<size_t>(rank.device_world.rank())]));  // only read

    rank.device_world.reduce_scatter(view(in).slice(begin, begin + count), view(in), ReduceOp::kSum, stream)
        .wait(stream);
    const std::vector<T> after = in.read();
    EXPECT_TRUE(same(std::vector<T>(after.begin() + begin, after.begin() + begin + count), expected));
  }
}

void reduce_scatter_sums_in_rank_order(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  check_reduce_scatter<float>(rank, *stream);
  check_reduce_scatter<double>(rank, *stream);
  check_reduce_scatter<BFloat16>(rank, *stream);
  check_reduce_scatter<Float16>(rank, *stream);
  check_reduce_scatter<int64_t>(rank, *stream);
}

template <typename T>
void check_same_as_two_halves(RankContext& rank, Stream& stream) {
  for (const int64_t count : counts(rank.device_world.size())) {
    SCOPED_TRACE(count);
    const std::vector<T> values = operand<T>(rank.device_world.rank(), count * rank.device_world.size());
    const OnDevice<T> whole(rank, stream, values);
    const OnDevice<T> halves(rank, stream, values);
    rank.device_world.all_reduce(view(whole), ReduceOp::kSum, stream).wait(stream);
    const TensorView part =
        view(halves).slice(rank.device_world.rank() * count, (rank.device_world.rank() + 1) * count);
    rank.device_world.reduce_scatter(part, view(halves), ReduceOp::kSum, stream).wait(stream);
    rank.device_world.all_gather(view(halves), part, stream).wait(stream);
    EXPECT_TRUE(same(halves.read(), whole.read()));
    for (int repeat = 0; repeat < 2; ++repeat) {
      const OnDevice<T> x(rank, stream, values);
      rank.device_world.all_reduce(view(x), ReduceOp::kSum, stream).wait(stream);
      EXPECT_TRUE(same(x.read(), whole.read()));
    }
  }
}

void all_reduce_is_reduce_scatter_then_all_gather(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  check_same_as_two_halves<float>(rank, *stream);
  check_same_as_two_halves<BFloat16>(rank, *stream);
  check_same_as_two_halves<Float16>(rank, *stream);
}

void broadcast_from_every_root(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  for (int root = 0; root < rank.device_world.size(); ++root) {
    for (const int64_t count : counts(1)) {
      const OnDevice<uint8_t> bytes(rank, *stream, operand<uint8_t>(rank.device_world.rank(), count));
      rank.device_world.broadcast(view(bytes), root, *stream).wait(*stream);
      EXPECT_TRUE(same(bytes.read(), operand<uint8_t>(root, count)));
      const OnDevice<double> x(rank, *stream, operand<double>(rank.device_world.rank(), count));
      rank.device_world.broadcast(view(x), root, *stream).wait(*stream);
      EXPECT_TRUE(same(x.read(), operand<double>(root, count)));
    }
  }
}

void split_by_color_and_key(RankContext& rank) {
  Communicator& world = rank.device_world;
  const auto stream = rank.device.create_stream();
  // Two groups, the second in reverse order; rank 0 of a world of three or more joins none.
  const int color = world.size() >= 3 && world.rank() == 0 ? -1 : world.rank() % 2;
  const int key = color == 1 ? -world.rank() : world.rank();
  const std::unique_ptr<Communicator> part = world.split(color, key, "part");
  ASSERT_EQ(part == nullptr, color < 0);
  std::vector<int> expected;
  for (int member = 0; member < world.size(); ++member) {
    if (member % 2 == color && !(world.size() >= 3 && member == 0)) {
      expected.push_back(member);
    }
  }
  if (color == 1) {
    std::reverse(expected.begin(), expected.end());
  }
  if (part != nullptr) {
    EXPECT_EQ(part->name(), "part");
    EXPECT_EQ(std::vector<int>(part->world_ranks().begin(), part->world_ranks().end()), expected);
    EXPECT_EQ(part->world_ranks()[static_cast<size_t>(part->rank())], world.rank());
    for (const int64_t count : {1, 20000}) {
      const auto all = operands<float>(*part, count);
      const OnDevice<float> x(rank, *stream, all[static_cast<size_t>(part->rank())]);
      part->all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
      EXPECT_TRUE(same(x.read(), reduced(all, ReduceOp::kSum)));
    }
    // Groups of one, out of a group.
    const std::unique_ptr<Communicator> single = part->split(part->rank(), 0, "single");
    ASSERT_EQ(single->size(), 1);
    const OnDevice<float> x(rank, *stream, {3.0f});
    const OnDevice<float> y(rank, *stream, {0.0f});
    single->all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
    single->all_gather(view(y), view(x), *stream).wait(*stream);
    single->reduce_scatter(view(x), view(y), ReduceOp::kSum, *stream).wait(*stream);
    single->broadcast(view(x), 0, *stream).wait(*stream);
    single->barrier();
    EXPECT_EQ(x.read()[0], 3.0f);
  }
  world.barrier();
}

void groups_work_side_by_side(RankContext& rank) {
  // Pairs and the world in turn, in different numbers: no group may disturb another's buffers.
  const auto stream = rank.device.create_stream();
  const std::unique_ptr<Communicator> pair =
      rank.device_world.split(rank.device_world.rank() / 2, rank.device_world.rank(), "pair");
  const std::unique_ptr<Communicator> twin = rank.device_world.split(0, rank.device_world.rank(), "twin");
  for (uint64_t turn = 0; turn < 12; ++turn) {
    for (Communicator* comm : {pair.get(), &rank.device_world, pair.get(), twin.get()}) {
      const int64_t count = static_cast<int64_t>(1 + turn * 577);
      const auto all = operands<float>(*comm, count, turn);
      const OnDevice<float> x(rank, *stream, all[static_cast<size_t>(comm->rank())]);
      comm->all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
      ASSERT_TRUE(same(x.read(), reduced(all, ReduceOp::kSum)));
    }
  }
}

void random_sequences_of_operations(RankContext& rank) {
  Communicator& world = rank.device_world;
  const auto stream = rank.device.create_stream();
  uint64_t state = 12345;
  const auto draw = [&](uint64_t bound) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % bound;
  };
  for (uint64_t turn = 0; turn < 80; ++turn) {
    const auto kind = draw(5);
    const auto count = static_cast<int64_t>(draw(4) == 0 ? draw(static_cast<uint64_t>(contract_buffer_elements)) /
                                                               static_cast<uint64_t>(world.size())
                                                         : draw(300));
    const int root = static_cast<int>(draw(static_cast<uint64_t>(world.size())));
    const auto all = operands<float>(world, count * world.size(), turn);
    const std::vector<float>& mine = all[static_cast<size_t>(world.rank())];
    const std::vector<float> sum = reduced(all, ReduceOp::kSum);
    const OnDevice<float> x(rank, *stream, mine);
    const OnDevice<float> part(rank, *stream, {mine.begin(), mine.begin() + count});
    if (kind == 0) {
      world.all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
      ASSERT_TRUE(same(x.read(), sum)) << turn;
    } else if (kind == 1) {
      world.reduce_scatter(view(part), view(x), ReduceOp::kSum, *stream).wait(*stream);
      const auto begin = sum.begin() + world.rank() * count;
      ASSERT_TRUE(same(part.read(), std::vector<float>(begin, begin + count))) << turn;
    } else if (kind == 2) {
      world.all_gather(view(x), view(part), *stream).wait(*stream);
      const std::vector<float> got = x.read();
      for (int from = 0; from < world.size(); ++from) {
        const auto& theirs = all[static_cast<size_t>(from)];
        ASSERT_TRUE(same(std::vector<float>(got.begin() + from * count, got.begin() + (from + 1) * count),
                         std::vector<float>(theirs.begin(), theirs.begin() + count)))
            << turn;
      }
    } else if (kind == 3) {
      world.broadcast(view(x), root, *stream).wait(*stream);
      ASSERT_TRUE(same(x.read(), all[static_cast<size_t>(root)])) << turn;
    } else {
      world.barrier();
    }
  }
}

void operations_and_bytes_are_counted(RankContext& rank) {
  const auto stream = rank.device.create_stream();
  const std::unique_ptr<Communicator> comm = rank.device_world.split(0, rank.device_world.rank(), "counted");
  const OnDevice<float> x(rank, *stream, std::vector<float>(10));
  const OnDevice<float> all(rank, *stream, std::vector<float>(10 * static_cast<size_t>(comm->size())));
  comm->all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
  comm->all_reduce(view(x), ReduceOp::kSum, *stream).wait(*stream);
  comm->all_gather(view(all), view(x), *stream).wait(*stream);
  comm->broadcast(view(x), 0, *stream).wait(*stream);
  EXPECT_EQ(comm->num_ops(OpKind::kAllReduce), 2);
  EXPECT_EQ(comm->bytes_sent(OpKind::kAllReduce), 80);
  EXPECT_EQ(comm->num_ops(OpKind::kAllGather), 1);
  EXPECT_EQ(comm->bytes_sent(OpKind::kAllGather), 40);
  EXPECT_EQ(comm->bytes_sent(OpKind::kBroadcast), comm->rank() == 0 ? 40 : 0);
  EXPECT_EQ(comm->num_ops(OpKind::kReduceScatter), 0);
}

}  // namespace

std::vector<ContractCase> collective_cases() {
  return {{"all_reduce_sums_in_rank_order", all_reduce_sums_in_rank_order},
          {"all_reduce_finds_the_maximum", all_reduce_finds_the_maximum},
          {"a_nan_on_any_rank_reaches_all", a_nan_on_any_rank_reaches_all},
          {"int64_sums_are_exact", int64_sums_are_exact},
          {"bf16_sums_accumulate_in_fp32", bf16_sums_accumulate_in_fp32},
          {"all_gather_orders_parts_by_rank", all_gather_orders_parts_by_rank},
          {"all_gather_of_large_parts", all_gather_of_large_parts},
          {"reduce_scatter_sums_in_rank_order", reduce_scatter_sums_in_rank_order},
          {"all_reduce_is_reduce_scatter_then_all_gather", all_reduce_is_reduce_scatter_then_all_gather},
          {"broadcast_from_every_root", broadcast_from_every_root},
          {"split_by_color_and_key", split_by_color_and_key},
          {"groups_work_side_by_side", groups_work_side_by_side},
          {"random_sequences_of_operations", random_sequences_of_operations},
          {"operations_and_bytes_are_counted", operations_and_bytes_are_counted}};
}

}  // namespace ashlar
