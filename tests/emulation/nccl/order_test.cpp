// A training step in miniature on a grid of 2 x 2: pipeline messages, gradient buckets reduced while the next one is
// made. Whatever the streams' timing, the bits are the same; and mistakes are reported with the operation's name.
#include <gmock/gmock.h>

#include <optional>

#include "tests/emulation/nccl/ranks_on_gpus.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr size_t kCount = 5000;
constexpr int kMicrobatches = 3;

enum class Mistake { kNone, kNoWait, kNoWaitForReceive, kSkippedCollective, kOtherCount, kFreedBuffer };

float add_half(float a, float b) {
  return a + 0.5f * b;
}
float decay(float a, float b) {
  return 0.75f * a - 0.1f * b + 1.0f;
}

// Two buckets of gradients after some micro-batches. Rank 2's mistakes are planted in the last one.
std::vector<float> step(RankContext& rank, Mistake mistake) {
  Communicator& world = rank.device_world;
  const auto pipeline = world.split(world.rank() % 2, world.rank(), "pipeline");
  const auto data = world.split(world.rank() / 2, world.rank(), "data");
  const auto compute = rank.device.create_stream();
  const GpuArray activation(rank, kCount);
  const GpuArray received(rank, kCount);
  const GpuArray norm(rank, 1);
  std::optional<GpuArray> first(std::in_place, rank, kCount);
  const GpuArray second(rank, kCount);
  for (const GpuArray* array :
       std::initializer_list<const GpuArray*>{&activation, &received, &*first, &second, &norm}) {
    compute->fill_zero(array->data(), array->length * sizeof(float));
  }
  const auto run = [&](const char* name, const GpuArray& out, const GpuArray& in, float (*combine)(float, float)) {
    run_kernel(*compute, name, out.data(), in.data(), out.length, combine);
  };
  const int peer = 1 - pipeline->rank();
  Work sent;
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    const bool erring = world.rank() == 2 && microbatch == kMicrobatches - 1;
    const auto errs = [&](Mistake kind) { return erring && mistake == kind; };
    // The first stage sends before it receives, the second the other way round, each in an exchange of its own.
    const Transfer send{Transfer::Direction::kSend, peer, microbatch, activation.view()};
    const Transfer receive{Transfer::Direction::kReceive, peer, microbatch, received.view()};
    std::exchange(sent, Work()).wait(*compute);
    run("forward", activation, second, decay);
    sent = pipeline->exchange({&send, 1}, *compute);
    Work arrived = pipeline->exchange({&receive, 1}, *compute);
    run("other work", second, second, decay);
    if (!errs(Mistake::kNoWaitForReceive)) {
      arrived.wait(*compute);
    }
    run("backward", *first, received, add_half);
    Work first_sum;
    if (!errs(Mistake::kSkippedCollective)) {
      const int64_t count = errs(Mistake::kOtherCount) ? kCount - 1 : kCount;
      first_sum = data->all_reduce(first->view().slice(0, count), ReduceOp::kSum, *compute);
    }
    if (errs(Mistake::kFreedBuffer)) {
      first.reset();
      return {};
    }
    run("backward of the other bucket", second, received, add_half);
    Work second_sum = data->all_reduce(second.view(), ReduceOp::kSum, *compute);
    if (!errs(Mistake::kNoWait)) {
      first_sum.wait(*compute);
    }
    run("norm of the first bucket", norm, *first, add_half);
    second_sum.wait(*compute);
  }
  sent.wait(*compute);
  const Buffer host = rank.device.allocate_host(2 * kCount * sizeof(float), "results");
  compute->copy(host.data(), first->data(), kCount * sizeof(float));
  compute->copy(host.data() + kCount * sizeof(float), second.data(), kCount * sizeof(float));
  compute->synchronize();
  const float* values = reinterpret_cast<const float*>(host.data());
  return {values, values + 2 * kCount};
}

std::vector<float> results_of(uint64_t seed, standin::Delays delays) {
  play_gpus(4, seed, delays);
  std::vector<std::vector<float>> results(4);
  run_on_gpus(4,
              [&](RankContext& rank) { results[static_cast<size_t>(rank.world.rank())] = step(rank, Mistake::kNone); });
  EXPECT_EQ(reports(), "");
  std::vector<float> all;
  for (const std::vector<float>& one : results) {
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST(Order, SameBitsUnderFiftySeedsOfDelays) {
  const std::vector<float> expected = results_of(0, standin::Delays::kNone);
  EXPECT_NE(expected.front(), 0.0f);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    ASSERT_TRUE(results_of(seed, standin::Delays::kRandom) == expected) << "seed " << seed;
  }
  EXPECT_TRUE(results_of(1, standin::Delays::kLate) == expected);
}

struct Found {
  std::string error;    // of the first rank that threw
  std::string reports;  // of the stand-ins
};

Found found(Mistake mistake) {
  play_gpus(4, 7, standin::Delays::kRandom);
  Found result;
  try {
    run_on_gpus(4, [&](RankContext& rank) { step(rank, mistake); });
  } catch (const Error& error) {
    result.error = error.what();
  }
  result.reports = reports();
  standin::reset({});
  return result;
}

TEST(Order, MissingWaitForACollectiveIsReported) {
  EXPECT_THAT(found(Mistake::kNoWait).reports,
              AllOf(HasSubstr("missing wait: norm of the first bucket"),
                    HasSubstr("ncclAllReduce #5 of 5000 ncclFloat32 (sum) of communicator \"data\", rank 0 of 2")));
}

TEST(Order, MissingWaitForAMessageIsReported) {
  EXPECT_THAT(found(Mistake::kNoWaitForReceive).reports,
              AllOf(HasSubstr("missing wait: "), HasSubstr("backward"),
                    HasSubstr("ncclRecv #4 of 5000 ncclFloat32 from rank 0 of communicator \"pipeline 0>1\", rank 1")));
}

TEST(Order, SkippedCollectiveIsReported) {
  const Found skipped = found(Mistake::kSkippedCollective);
  EXPECT_THAT(skipped.error + skipped.reports,
              AllOf(HasSubstr("data"), AnyOf(HasSubstr("all_reduce(sum) #6"), HasSubstr("ncclAllReduce #6"))));
}

TEST(Order, OtherCountIsReported) {
  EXPECT_THAT(found(Mistake::kOtherCount).error,
              AllOf(HasSubstr("operation #5 of group \"data\" is not the same on all members"),
                    HasSubstr("rank 2 calls all_reduce(sum) #5 of 19996 bytes fp32"),
                    HasSubstr("rank 3 calls all_reduce(sum) #5 of 20000 bytes fp32")));
}

TEST(Order, FreedBufferIsReported) {
  EXPECT_THAT(found(Mistake::kFreedBuffer).reports,
              AllOf(HasSubstr("is freed although the host has not waited for"),
                    HasSubstr("ncclAllReduce #5 of 5000 ncclFloat32 (sum) of communicator \"data\"")));
}

}  // namespace
}  // namespace ashlar
