#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/device/cpu/cpu_device.h"
#include "tests/runtime/device/device_contract.h"

namespace ashlar {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// Waits for a flag, at most 20 seconds; false when it did not come.
bool comes_true(const std::atomic<bool>& flag) {
  const auto deadline = steady_clock::now() + seconds(20);
  while (!flag) {
    if (steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

class StreamTest : public ::testing::TestWithParam<CpuStreamKind> {
 protected:
  CpuDevice device_{GetParam()};
  std::unique_ptr<Stream> stream_ = device_.create_stream();
  CpuStream& cpu() { return cpu_stream(*stream_); }
};

TEST_P(StreamTest, RunsMoreTasksThanTheQueueHoldsInOrder) {
  std::vector<int> order;
  order.reserve(2000);
  for (int i = 0; i < 2000; ++i) {
    cpu().enqueue([&order, i] { order.push_back(i); });
  }
  stream_->synchronize();
  ASSERT_EQ(order.size(), 2000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_P(StreamTest, DestructionFinishesWhatWasEnqueued) {
  int done = 0;
  for (int i = 0; i < 100; ++i) {
    cpu().enqueue([&done] { ++done; });
  }
  stream_.reset();
  EXPECT_EQ(done, 100);
}

TEST_P(StreamTest, AnEventOrdersTwoStreams) {
  const std::unique_ptr<Stream> second = device_.create_stream();
  const std::unique_ptr<Event> event = device_.create_event();
  for (int round = 0; round < 200; ++round) {
    int value = 0;
    int seen = -1;
    cpu().enqueue([&value, round] { value = round + 1; });
    stream_->record(*event);
    second->wait(*event);
    cpu_stream(*second).enqueue([&value, &seen] { seen = value; });
    second->synchronize();
    ASSERT_EQ(seen, round + 1);
    stream_->synchronize();
  }
}

ContractDevice cpu_device(const std::string& name, CpuStreamKind kind) {
  return {name, [kind] { return std::make_unique<CpuDevice>(kind); }};
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceContract,
                         ::testing::Values(cpu_device("inline_streams", CpuStreamKind::kInline),
                                           cpu_device("queued_streams", CpuStreamKind::kQueued)),
                         contract_device_name);
INSTANTIATE_TEST_SUITE_P(BothKinds, StreamTest, ::testing::Values(CpuStreamKind::kInline, CpuStreamKind::kQueued));

TEST(QueuedStream, EnqueueReturnsBeforeTheWorkIsDone) {
  CpuDevice device(CpuStreamKind::kQueued);
  const std::unique_ptr<Stream> stream = device.create_stream();
  std::atomic<bool> host_went_on{false};
  bool came = false;
  std::thread::id worker;
  cpu_stream(*stream).enqueue([&host_went_on, &came, &worker] {
    came = comes_true(host_went_on);
    worker = std::this_thread::get_id();
  });
  host_went_on = true;  // would never be reached if enqueue() ran the task
  stream->synchronize();
  EXPECT_TRUE(came);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(QueuedStream, AnEventIsReachedWhenItsStreamComesToIt) {
  CpuDevice device(CpuStreamKind::kQueued);
  const std::unique_ptr<Stream> stream = device.create_stream();
  const std::unique_ptr<Event> event = device.create_event();
  std::atomic<bool> release{false};
  bool came = false;
  cpu_stream(*stream).enqueue([&release, &came] { came = comes_true(release); });
  stream->record(*event);
  EXPECT_FALSE(event->reached());  // the stream cannot have come past the task
  release = true;
  event->synchronize();
  EXPECT_TRUE(event->reached());
  EXPECT_TRUE(came);
}

// A wait belongs to the record enqueued before it: a later record of the same event does not delay it.
TEST(QueuedStream, AWaitMeansTheRecordBeforeIt) {
  CpuDevice device(CpuStreamKind::kQueued);
  const std::unique_ptr<Stream> first = device.create_stream();
  const std::unique_ptr<Stream> second = device.create_stream();
  const std::unique_ptr<Event> event = device.create_event();
  std::atomic<bool> release{false};
  std::atomic<bool> second_done{false};
  bool came = false;
  first->record(*event);
  second->wait(*event);
  cpu_stream(*second).enqueue([&second_done] { second_done = true; });
  cpu_stream(*first).enqueue([&release, &came] { came = comes_true(release); });
  first->record(*event);
  EXPECT_TRUE(comes_true(second_done));  // while the second record still waits for `release`
  release = true;
  first->synchronize();
  second->synchronize();
  EXPECT_TRUE(came);
}

// ... and a wait enqueued after two records waits for the second one.
TEST(QueuedStream, AWaitIsNotSatisfiedByAnOlderRecord) {
  CpuDevice device(CpuStreamKind::kQueued);
  const std::unique_ptr<Stream> first = device.create_stream();
  const std::unique_ptr<Stream> second = device.create_stream();
  const std::unique_ptr<Event> event = device.create_event();
  first->record(*event);
  first->synchronize();
  std::atomic<bool> release{false};
  bool value = false;
  bool seen = false;
  cpu_stream(*first).enqueue([&release, &value] { value = comes_true(release); });
  first->record(*event);
  second->wait(*event);
  cpu_stream(*second).enqueue([&seen, &value] { seen = value; });
  release = true;
  second->synchronize();
  EXPECT_TRUE(seen);
}

TEST(QueuedStream, AFailureIsThrownOnceAtSynchronize) {
  CpuDevice device(CpuStreamKind::kQueued);
  const std::unique_ptr<Stream> stream = device.create_stream();
  bool later_ran = false;
  cpu_stream(*stream).enqueue([] { throw Error(ErrorCode::kNumerics, "first"); });
  cpu_stream(*stream).enqueue([] { throw Error(ErrorCode::kNumerics, "second"); });
  cpu_stream(*stream).enqueue([&later_ran] { later_ran = true; });
  try {
    stream->synchronize();
    FAIL() << "synchronize did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "first");
    EXPECT_EQ(error.code(), ErrorCode::kNumerics);
  }
  EXPECT_TRUE(later_ran);
  EXPECT_NO_THROW(stream->synchronize());
}

TEST(InlineStream, AFailureIsThrownAtOnce) {
  CpuDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  EXPECT_THROW(cpu_stream(*stream).enqueue([] { throw Error(ErrorCode::kNumerics, "now"); }), Error);
}

}  // namespace
}  // namespace ashlar
