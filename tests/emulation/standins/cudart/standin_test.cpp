// What the stand-in refuses, finds and allows, call by call.
#include "tests/emulation/standins/cudart/standin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/emulation/standins/cudart/clean_exit.h"

namespace ashlar::standin {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  return stream;
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  return event;
}

// Two streams, an event, and a buffer of 100 bytes on the device and one beside the host.
class StandinTest : public testing::Test {
 protected:
  StandinTest() {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&device_, 100), cudaSuccess);
    EXPECT_EQ(cudaMallocHost(&pinned_, 100), cudaSuccess);
    a_ = make_stream();
    b_ = make_stream();
    event_ = make_event();
  }
  ~StandinTest() override {
    cudaStreamSynchronize(a_);
    cudaStreamSynchronize(b_);
    cudaStreamDestroy(a_);
    cudaStreamDestroy(b_);
    cudaEventDestroy(event_);
    cudaFree(device_);
    cudaFreeHost(pinned_);
  }
  std::byte* device(size_t offset) const { return static_cast<std::byte*>(device_) + offset; }

  void* device_ = nullptr;
  void* pinned_ = nullptr;
  cudaStream_t a_ = nullptr;
  cudaStream_t b_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

TEST_F(StandinTest, UnwrittenMemoryIsNotZero) {
  std::memset(pinned_, 0, 100);
  ASSERT_EQ(cudaMemcpyAsync(pinned_, device_, 100, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(static_cast<unsigned char*>(pinned_)[99], 0xff);
}

TEST_F(StandinTest, TheKindOfACopyMustFit) {
  const cudaMemcpyKind wrong_for_upload[] = {cudaMemcpyHostToHost, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
  for (const cudaMemcpyKind kind : wrong_for_upload) {
    EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, 100, kind, a_), cudaErrorInvalidValue);
  }
  EXPECT_EQ(take_reports().size(), 3u);
  EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, 100, cudaMemcpyHostToDevice, a_), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, 100, cudaMemcpyDefault, a_), cudaSuccess);
}

TEST_F(StandinTest, TheDefaultStreamIsRefused) {
  EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, 100, cudaMemcpyDefault, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, 100, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event_, nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorInvalidResourceHandle);
  cudaStream_t blocking = nullptr;
  EXPECT_EQ(cudaStreamCreateWithPriority(&blocking, cudaStreamDefault, 0), cudaErrorInvalidValue);
  EXPECT_EQ(take_reports().size(), 5u);
}

TEST_F(StandinTest, MemsetsAndWorkNeedTheCurrentDevice) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device_, 0, 100, a_), cudaErrorInvalidResourceHandle);
  EXPECT_FALSE(enqueue(a_, "kernel", [] {}));
  EXPECT_THAT(take_reports(),
              ElementsAre(HasSubstr("belongs to device 0, the current device is 1"), HasSubstr("kernel")));
  EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, 100, cudaMemcpyDefault, a_), cudaSuccess);  // copies do not
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(take_reports().size(), 1u);
  cudaSetDevice(0);
}

TEST_F(StandinTest, WhatIsGoneOrWasNeverThereIsRefused) {
  cudaStream_t stream = make_stream();
  cudaEvent_t event = make_event();
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamWaitEvent(a_, event, 0), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event_, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaFree(device(1)), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pinned_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(device_), cudaErrorInvalidValue);
  EXPECT_EQ(take_reports().size(), 8u);
}

TEST_F(StandinTest, FreedMemoryIsKnownAsFreed) {
  void* gone = nullptr;
  ASSERT_EQ(cudaMalloc(&gone, 50), cudaSuccess);
  ASSERT_EQ(cudaFree(gone), cudaSuccess);
  EXPECT_EQ(cudaFree(gone), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(gone, 0, 50, a_), cudaErrorInvalidValue);
  EXPECT_THAT(take_reports(), ElementsAre(HasSubstr("device buffer #3, which was freed"),
                                          HasSubstr("device buffer #3, which was freed")));
  void* next = nullptr;
  ASSERT_EQ(cudaMalloc(&next, 50), cudaSuccess);
  EXPECT_NE(next, gone);
  EXPECT_EQ(cudaFree(next), cudaSuccess);
}

TEST_F(StandinTest, MemoryHasALimitForEachDevice) {
  size_t free = 0, total = 0;
  void* more = nullptr;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total - free, 100u);
  EXPECT_EQ(cudaMalloc(&more, free + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // it does not stay
  EXPECT_EQ(cudaMalloc(&more, 1000), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total - free, 100u);
}

TEST_F(StandinTest, AFaultStaysWithItsDevice) {
  ASSERT_TRUE(enqueue(a_, "stray kernel", [this] { EXPECT_FALSE(touch(device(96), 8, Access::kWrite)); }));
  bool later_ran = false;
  enqueue(a_, "later kernel", [&] { later_ran = true; });  // refused when the fault is known by now, else not run
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorIllegalAddress);
  EXPECT_FALSE(later_ran);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, 4, cudaMemcpyDefault, b_), cudaErrorIllegalAddress);
  EXPECT_THAT(
      cudaGetErrorString(cudaErrorIllegalAddress),
      AllOf(HasSubstr("stray kernel #1 on stream 0 writes device buffer #1 at byte 96, 4 bytes beyond its end")));
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);  // the thread's last error, of device 0
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(take_reports().size(), 1u);
}

TEST_F(StandinTest, WorkOnDisjointBytesNeedsNoOrder) {
  cudaMemsetAsync(device(0), 1, 50, a_);
  cudaMemsetAsync(device(50), 2, 50, b_);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_THAT(take_reports(), IsEmpty());
}

TEST_F(StandinTest, OneSharedByteNeedsOne) {
  cudaMemsetAsync(device(0), 1, 51, a_);
  cudaMemsetAsync(device(50), 2, 50, b_);
  cudaStreamSynchronize(a_);
  cudaStreamSynchronize(b_);
  EXPECT_THAT(take_reports(), ElementsAre(AllOf(HasSubstr("device buffer #1 at byte 50"), HasSubstr("wrote last"),
                                                HasSubstr("stream 0"), HasSubstr("stream 1"))));
}

TEST_F(StandinTest, TwoReadersNeedNoOrder) {
  void* other = nullptr;
  ASSERT_EQ(cudaMalloc(&other, 200), cudaSuccess);
  auto* target = static_cast<std::byte*>(other);
  cudaMemcpyAsync(target, device_, 100, cudaMemcpyDefault, a_);
  cudaMemcpyAsync(target + 100, device_, 100, cudaMemcpyDefault, b_);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
}

// a writes, both the middle stream and b wait along a chain: order passes on.
TEST_F(StandinTest, OrderPassesThroughAThirdStream) {
  cudaStream_t middle = make_stream();
  cudaEvent_t second = make_event();
  cudaMemsetAsync(device_, 1, 100, a_);
  cudaEventRecord(event_, a_);
  cudaStreamWaitEvent(middle, event_, 0);
  cudaEventRecord(second, middle);
  cudaStreamWaitEvent(b_, second, 0);
  cudaMemsetAsync(device_, 2, 100, b_);
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_THAT(take_reports(), IsEmpty());
  cudaStreamDestroy(middle);
  cudaEventDestroy(second);
}

// A wait belongs to the record before it, not to the event.
TEST_F(StandinTest, AWaitMeansTheRecordBeforeIt) {
  cudaEventRecord(event_, a_);
  cudaStreamWaitEvent(b_, event_, 0);
  cudaMemsetAsync(device_, 1, 100, a_);
  cudaEventRecord(event_, a_);
  cudaMemsetAsync(device_, 2, 100, b_);
  cudaStreamSynchronize(a_);
  cudaStreamSynchronize(b_);
  EXPECT_THAT(take_reports(), ElementsAre(HasSubstr("missing wait")));
}

TEST_F(StandinTest, EveryHostWaitOrdersWhatIsEnqueuedAfterIt) {
  const auto wait_by = [this](int way) {
    switch (way) {
      case 0:
        return cudaStreamSynchronize(a_);
      case 1:
        return cudaEventSynchronize(event_);
      default: {
        cudaError_t status = cudaErrorNotReady;
        while (status == cudaErrorNotReady) {
          status = way == 2 ? cudaStreamQuery(a_) : cudaEventQuery(event_);
        }
        return status;
      }
    }
  };
  for (int way = 0; way < 4; ++way) {
    cudaMemsetAsync(device_, 1, 100, a_);
    cudaEventRecord(event_, a_);
    ASSERT_EQ(wait_by(way), cudaSuccess);
    cudaMemsetAsync(device_, 2, 100, b_);
    ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess) << "way " << way;
  }
  EXPECT_THAT(take_reports(), IsEmpty());
}

// The work of other stand-ins takes part in the order.
TEST_F(StandinTest, WorkOfAnotherStandInIsChecked) {
  ASSERT_TRUE(enqueue(a_, "gelu", [this] { touch(device_, 100, Access::kWrite); }));
  ASSERT_TRUE(enqueue(b_, "ncclAllReduce", [this] { touch(device_, 100, Access::kRead); }));
  demand(a_);
  demand(b_);
  cudaStreamSynchronize(a_);
  cudaStreamSynchronize(b_);
  EXPECT_THAT(take_reports(), ElementsAre(AllOf(HasSubstr("missing wait"), HasSubstr("gelu #1 on stream 0"),
                                                HasSubstr("ncclAllReduce #2 on stream 1"))));
}

TEST_F(StandinTest, PinnedMemoryTakesPartToo) {
  cudaMemcpyAsync(pinned_, device(0), 50, cudaMemcpyDefault, a_);
  cudaMemcpyAsync(device(50), pinned_, 50, cudaMemcpyDefault, b_);
  cudaStreamSynchronize(a_);
  cudaStreamSynchronize(b_);
  EXPECT_THAT(take_reports(), ElementsAre(AllOf(HasSubstr("missing wait"), HasSubstr("pinned buffer #2"))));
}

TEST(Standin, NamesWhatIsLeftBehind) {
  cudaStream_t stream = make_stream();
  cudaEvent_t event = make_event();
  void* memory = nullptr;
  cudaMallocHost(&memory, 10);
  EXPECT_THAT(leaks(), ElementsAre("stream 0", "pinned buffer #1", "1 events"));
  cudaStreamDestroy(stream);
  cudaEventDestroy(event);
  cudaFreeHost(memory);
  EXPECT_THAT(leaks(), IsEmpty());
}

TEST(Standin, WithoutADriverTheCountIsLeftAlone) {
  Config config;
  config.driver_version = 0;
  reset(config);
  int version = -1;
  EXPECT_EQ(cudaDriverGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version, 0);
  int count = 77;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 77);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInsufficientDriver);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 10), cudaErrorInsufficientDriver);
}

TEST(Standin, TakesMemoryFromElsewhere) {
  static std::vector<void*> given;
  static int num_released;
  given.clear();
  num_released = 0;
  Config config;
  config.allocate = [](size_t bytes) { return given.emplace_back(std::aligned_alloc(256, (bytes + 255) / 256 * 256)); };
  config.release = [](void* memory) {
    ++num_released;
    std::free(memory);
  };
  reset(config);
  void* first = nullptr;
  void* second = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 10), cudaSuccess);
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&second, 10), cudaSuccess);
  EXPECT_THAT(given, ElementsAre(first, second));
  reset();  // gives back what was left
  EXPECT_EQ(num_released, 2);
}

}  // namespace
}  // namespace ashlar::standin
