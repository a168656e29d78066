#include "tests/runtime/device/device_contract.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/device/arena.h"

namespace ashlar {
namespace {

TEST_P(DeviceContract, AllocatesAlignedMemoryAndCountsIt) {
  {
    const Buffer a = device_->allocate(100, "a");
    const Buffer b = device_->allocate(3 << 20, "b");
    const Buffer host = device_->allocate_host(1000, "host");
    EXPECT_EQ(device_->num_allocations(), 3);
    EXPECT_EQ(device_->allocated_bytes(), 100 + (3 << 20));
    for (const Buffer* buffer : {&a, &b, &host}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % Arena::kAlignment, 0u);
    }
    std::memset(host.data(), 1, host.bytes());
  }
  EXPECT_EQ(device_->allocated_bytes(), 0);
  EXPECT_EQ(device_->allocate(0, "nothing").data(), nullptr);
  EXPECT_EQ(device_->num_allocations(), 3);
}

TEST_P(DeviceContract, StreamsOfBothPrioritiesBelongToTheDevice) {
  for (const StreamPriority priority : {StreamPriority::kCompute, StreamPriority::kCommunication}) {
    const std::unique_ptr<Stream> stream = device_->create_stream(priority);
    EXPECT_EQ(&stream->device(), device_.get());
    EXPECT_NO_THROW(stream->synchronize());  // nothing to wait for
  }
}

TEST_P(DeviceContract, CopiesAndFillsInOrder) {
  const size_t count = 1000;
  const Buffer a = on_device(count), b = on_device(count), in = on_host(count), out = on_host(2 * count);
  const std::unique_ptr<Stream> stream = device_->create_stream();
  std::iota(ints(in), ints(in) + count, 7);
  stream->copy(a.data(), in.data(), in.bytes());
  stream->copy(b.data(), a.data(), a.bytes());
  stream->fill_zero(a.data(), a.bytes());
  stream->copy(out.data(), b.data(), b.bytes());
  stream->copy(out.data() + b.bytes(), a.data(), a.bytes());
  stream->synchronize();
  EXPECT_TRUE(std::equal(ints(in), ints(in) + count, ints(out)));
  EXPECT_EQ(std::count(ints(out) + count, ints(out) + 2 * count, 0), 1000);
}

TEST_P(DeviceContract, CopiesAndFillsPartsOfABuffer) {
  const Buffer a = on_device(10), host = on_host(10);
  const std::unique_ptr<Stream> stream = device_->create_stream();
  std::iota(ints(host), ints(host) + 10, 0);
  stream->copy(a.data(), host.data(), a.bytes());
  stream->copy(ints(a) + 7, ints(a) + 1, 3 * sizeof(int));
  stream->fill_zero(ints(a) + 4, 2 * sizeof(int));
  stream->copy(a.data(), a.data(), 0);  // nothing
  stream->fill_zero(a.data(), 0);
  stream->copy(host.data(), a.data(), a.bytes());
  stream->synchronize();
  EXPECT_EQ(std::vector<int>(ints(host), ints(host) + 10), (std::vector<int>{0, 1, 2, 3, 0, 0, 6, 1, 2, 3}));
}

TEST_P(DeviceContract, NothingIsCopiedToAndFromNowhere) {
  const auto stream = device_->create_stream();
  stream->copy(nullptr, nullptr, 0);
  stream->fill_zero(nullptr, 0);
  stream->synchronize();
}

TEST_P(DeviceContract, TakesMoreWorkThanAnyQueueHolds) {
  const Buffer a = on_device(1), host = on_host(600);
  const std::unique_ptr<Stream> stream = device_->create_stream();
  std::iota(ints(host), ints(host) + 600, 1);
  for (int i = 0; i < 300; ++i) {  // through one cell, so that order shows
    stream->copy(a.data(), ints(host) + i, sizeof(int));
    stream->copy(ints(host) + 300 + i, a.data(), sizeof(int));
  }
  stream->synchronize();
  EXPECT_TRUE(std::equal(ints(host), ints(host) + 300, ints(host) + 300));
}

TEST_P(DeviceContract, DestructionOfAStreamFinishesItsWork) {
  const Buffer a = on_device(100), host = on_host(100);
  std::fill_n(ints(host), 100, 5);
  {
    const std::unique_ptr<Stream> stream = device_->create_stream();
    stream->fill_zero(a.data(), a.bytes());
    stream->copy(host.data(), a.data(), a.bytes());
  }
  EXPECT_EQ(std::count(ints(host), ints(host) + 100, 0), 100);
}

// Both directions that a double-buffered pipeline needs: the reader after the writer, and the next writer after the
// reader.
TEST_P(DeviceContract, EventsOrderTwoStreams) {
  const int num_rounds = 40;
  const Buffer shared = on_device(64), seen = on_device(64), in = on_host(64 * num_rounds),
               out = on_host(64 * num_rounds);
  const std::unique_ptr<Stream> writer = device_->create_stream(StreamPriority::kCompute);
  const std::unique_ptr<Stream> reader = device_->create_stream(StreamPriority::kCommunication);
  const std::unique_ptr<Event> written = device_->create_event(), read = device_->create_event();
  std::iota(ints(in), ints(in) + 64 * num_rounds, 0);
  for (int round = 0; round < num_rounds; ++round) {
    writer->wait(*read);  // the first time it was never recorded
    writer->copy(shared.data(), ints(in) + 64 * round, shared.bytes());
    writer->record(*written);
    reader->wait(*written);
    reader->copy(seen.data(), shared.data(), shared.bytes());
    reader->record(*read);
    reader->copy(ints(out) + 64 * round, seen.data(), seen.bytes());
  }
  reader->synchronize();
  EXPECT_TRUE(std::equal(ints(in), ints(in) + 64 * num_rounds, ints(out)));
  writer->synchronize();
}

TEST_P(DeviceContract, AnEventThatWasNeverRecordedDoesNotBlock) {
  const std::unique_ptr<Event> event = device_->create_event();
  const std::unique_ptr<Stream> stream = device_->create_stream();
  EXPECT_TRUE(event->reached());
  event->synchronize();
  stream->wait(*event);
  stream->synchronize();
}

// Reading back one step late: the host waits for an old event while newer work goes on.
TEST_P(DeviceContract, TheHostWaitsForAnEvent) {
  const Buffer value = on_device(1), in = on_host(20), out = on_host(20);
  const std::unique_ptr<Stream> stream = device_->create_stream();
  const std::unique_ptr<Event> events[] = {device_->create_event(), device_->create_event()};
  std::iota(ints(in), ints(in) + 20, 100);
  std::fill_n(ints(out), 20, -1);
  for (int step = 0; step < 20; ++step) {
    stream->copy(value.data(), ints(in) + step, sizeof(int));
    stream->copy(ints(out) + step, value.data(), sizeof(int));
    stream->record(*events[step % 2]);
    if (step > 0) {
      const Event& last = *events[(step - 1) % 2];
      last.synchronize();
      EXPECT_TRUE(last.reached());
      EXPECT_EQ(ints(out)[step - 1], 100 + step - 1);
    }
  }
  stream->synchronize();
  EXPECT_EQ(ints(out)[19], 119);
}

}  // namespace
}  // namespace ashlar
