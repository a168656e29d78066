#include "runtime/tensor/host_copy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {
namespace {

// Takes itself for a GPU: its copies run later, on a worker thread.
class FakeGpu final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::unique_ptr<Event> create_event() override { return cpu_.create_event(); }

 protected:
  std::unique_ptr<Stream> make_stream(StreamPriority priority) override { return cpu_.create_stream(priority); }
  std::byte* allocate_bytes(MemoryKind, size_t bytes) override {
    return static_cast<std::byte*>(std::aligned_alloc(64, Arena::aligned(bytes)));
  }
  void free_bytes(MemoryKind, std::byte* data, size_t) noexcept override { std::free(data); }

 private:
  CpuDevice cpu_{CpuStreamKind::kQueued};
};

TEST(HostCopy, ThereAndBackInPieces) {
  FakeGpu device;
  constexpr int64_t kCount = (9 << 20) / 4 + 3;  // two whole pieces and some
  const Tensor tensor(device, DType::kI32, {kCount}, "test");
  std::vector<int32_t> values(static_cast<size_t>(kCount)), back(values.size());
  std::iota(values.begin(), values.end(), 1);
  HostCopy copy(device);
  copy.to_device(tensor.view().data, values.data(), tensor.view().bytes());
  copy.to_host(back.data(), tensor.view().data, tensor.view().bytes());
  EXPECT_EQ(back, values);
  std::vector<std::byte> scratch;
  const ConstTensorView on_host = copy.on_host(tensor, scratch);
  EXPECT_EQ(on_host.data, scratch.data());
  EXPECT_EQ(on_host.as<int32_t>()[kCount - 1], kCount);
  EXPECT_EQ(device.num_allocations(), 2);  // the tensor and one pinned buffer
}

TEST(HostCopy, AllOfADeviceShareOnePiece) {
  FakeGpu device;
  const Tensor tensor(device, DType::kI32, {1}, "test");
  const auto held = [&] { return device.memory_uses(MemoryKind::kHost).of(MemoryItem::kCopies); };
  for (int round = 0; round < 2; ++round) {
    HostCopy one(device), other(device);
    for (HostCopy* copy : {&one, &other}) {
      const int32_t value = round + (copy == &one ? 7 : 8);
      copy->to_device(tensor.view().data, &value, sizeof(value));
      int32_t back = 0;
      copy->to_host(&back, tensor.view().data, sizeof(back));
      EXPECT_EQ(back, value);
    }
    EXPECT_EQ(held().now, static_cast<int64_t>(CopyPiece::kBytes));
  }
  EXPECT_EQ(held().now, 0);
  EXPECT_EQ(held().peak, static_cast<int64_t>(CopyPiece::kBytes));
}

TEST(HostCopy, OnACpuReadsWhereTheTensorLies) {
  CpuDevice device;
  const Tensor tensor(device, DType::kI32, {5}, "test");
  HostCopy copy(device);
  const std::vector<int32_t> values{1, 2, 3, 4, 5};
  copy.to_device(tensor.view().data, values.data(), tensor.view().bytes());
  std::vector<std::byte> scratch;
  EXPECT_EQ(copy.on_host(tensor, scratch).data, tensor.view().data);
  EXPECT_EQ(tensor.as<int32_t>()[4], 5);
  EXPECT_EQ(device.num_allocations(), 1);
}

}  // namespace
}  // namespace ashlar
