#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/device/arena.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {
namespace {

// A device of another kind, with a limit on its memory.
class FakeDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::unique_ptr<Event> create_event() override { return nullptr; }

 protected:
  std::unique_ptr<Stream> make_stream(StreamPriority priority) override;
  std::byte* allocate_bytes(MemoryKind, size_t bytes) override {
    return bytes > 1000 ? nullptr : static_cast<std::byte*>(std::malloc(bytes));
  }
  void free_bytes(MemoryKind, std::byte* data, size_t) noexcept override { std::free(data); }
};

class FakeStream final : public Stream {
 public:
  explicit FakeStream(Device& device) : device_(device) {}
  Device& device() const override { return device_; }
  void copy(void*, const void*, size_t) override {}
  void fill_zero(void*, size_t) override {}
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}

 private:
  Device& device_;
};

std::unique_ptr<Stream> FakeDevice::make_stream(StreamPriority) {
  return std::make_unique<FakeStream>(*this);
}

TEST(Device, CountsWhatIsAllocatedAndFreed) {
  CpuDevice device;
  EXPECT_EQ(device.allocated_bytes(), 0);
  {
    const Buffer a = device.allocate(100, "a");
    const Buffer b = device.allocate(5 << 20, "b");
    EXPECT_EQ(device.num_allocations(), 2);
    EXPECT_EQ(device.allocated_bytes(), 100 + (5 << 20));
    for (const Buffer* buffer : {&a, &b}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % Arena::kAlignment, 0u);
      std::memset(buffer->data(), 1, buffer->bytes());  // the sanitizers see whether all of it is there
    }
  }
  EXPECT_EQ(device.allocated_bytes(), 0);
  EXPECT_EQ(device.num_allocations(), 2);
}

TEST(Device, NothingIsAllocatedForZeroBytes) {
  CpuDevice device;
  const Buffer buffer = device.allocate(0, "nothing");
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(device.num_allocations(), 0);
}

TEST(Device, OutOfMemoryNamesTheUseAndTheSizes) {
  FakeDevice device;
  const Buffer held = device.allocate(600, "weights");
  try {
    const Buffer refused = device.allocate(2000, "activations of stage 3");
    FAIL() << "allocate did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("activations of stage 3"), testing::HasSubstr("2000"),
                                             testing::HasSubstr("600"), testing::HasSubstr("--micro-batch-size")));
  }
  EXPECT_EQ(device.num_allocations(), 1);
}

TEST(Device, HostMemoryCountsAsAnAllocationButNotAsDeviceMemory) {
  FakeDevice device;
  const Buffer buffer = device.allocate_host(100, "tokens");
  EXPECT_EQ(buffer.bytes(), 100u);
  EXPECT_EQ(device.num_allocations(), 1);
  EXPECT_EQ(device.allocated_bytes(), 0);
  EXPECT_EQ(device.allocate_host(0, "nothing").data(), nullptr);
  try {
    const Buffer refused = device.allocate_host(2000, "losses read back");
    FAIL() << "allocate_host did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("losses read back"), testing::HasSubstr("2000"),
                                             testing::HasSubstr("ulimit -l")));
  }
}

TEST(Device, KnowsWhatMemoryIsForNowAndAtMost) {
  FakeDevice device;
  const Buffer weights = device.allocate(600, "weights", MemoryItem::kParameters);
  const Buffer pinned = device.allocate_host(50, "tokens", MemoryItem::kBatches);
  { const Buffer once = device.allocate(300, "a pass", MemoryItem::kWorkspace); }
  Buffer state = device.allocate(200, "moments", MemoryItem::kOptimizer);
  const Buffer moved = std::move(state);
  const Buffer plain = device.allocate(7, "a test");
  const MemoryUses uses = device.memory_uses(MemoryKind::kDevice);
  EXPECT_EQ(uses.of(MemoryItem::kParameters).now, 600);
  EXPECT_EQ(uses.of(MemoryItem::kWorkspace).now, 0);
  EXPECT_EQ(uses.of(MemoryItem::kWorkspace).peak, 300);
  EXPECT_EQ(uses.of(MemoryItem::kOptimizer).now, 200);
  EXPECT_EQ(uses.of(MemoryItem::kOther).now, 7);
  EXPECT_EQ(uses.of(MemoryItem::kBatches).peak, 0);
  EXPECT_EQ(uses.total.now, 807);
  EXPECT_EQ(uses.total.peak, 900);  // not the sum of the items' peaks
  EXPECT_EQ(device.memory_uses(MemoryKind::kHost).of(MemoryItem::kBatches).now, 50);
  EXPECT_EQ(device.memory_uses(MemoryKind::kHost).total.peak, 50);
}

TEST(MemoryCount, ThreadsLoseNothing) {
  MemoryCount count;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 1000; ++turn) {
        count.add(MemoryItem::kActivations, 3);
        count.add(MemoryItem::kActivations, -2);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const MemoryUses uses = count.uses();
  EXPECT_EQ(uses.of(MemoryItem::kActivations).now, 4000);
  EXPECT_EQ(uses.total.now, 4000);
  EXPECT_GE(uses.total.peak, 4000);
  EXPECT_LE(uses.total.peak, 4000 + 4 * 2);
}

TEST(MemoryItem, EachHasANameOfItsOwn) {
  std::set<std::string> names;
  for (size_t item = 0; item < kNumMemoryItems; ++item) {
    names.insert(memory_item_name(static_cast<MemoryItem>(item)));
  }
  EXPECT_EQ(names.size(), kNumMemoryItems);
  EXPECT_STREQ(memory_item_name(MemoryItem::kOther), "other");
}

TEST(Buffer, MovesItsMemoryAndFreesItOnce) {
  CpuDevice device;
  Buffer a = device.allocate(64, "a");
  std::byte* const data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.bytes(), 64u);
  Buffer c = device.allocate(128, "c");
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  b = Buffer();
  EXPECT_EQ(device.allocated_bytes(), 64);
}

TEST(CpuStream, RefusesAStreamOfAnotherDevice) {
  FakeDevice device;
  const std::unique_ptr<Stream> stream = device.create_stream();
  EXPECT_THROW(cpu_stream(*stream), Error);
}

// One layout function, run twice, must give one number.
size_t lay_out(Arena& arena, std::vector<std::byte*>* pieces) {
  for (const size_t bytes : {1u, 64u, 65u, 0u, 1000u}) {
    std::byte* const piece = arena.take(bytes);
    if (pieces != nullptr) {
      pieces->push_back(piece);
    }
  }
  const size_t mark = arena.mark();
  arena.take(500);
  arena.reset_to(mark);
  arena.take(300);
  return arena.high_water();
}

TEST(Arena, CountingAndRealLayoutsAgree) {
  Arena plan;
  const size_t planned = lay_out(plan, nullptr);
  EXPECT_TRUE(plan.counting());
  EXPECT_EQ(planned, 64u + 64 + 128 + 0 + 1024 + 512);
  EXPECT_EQ(plan.used(), 64u + 64 + 128 + 0 + 1024 + 320);

  CpuDevice device;
  const Buffer buffer = device.allocate(planned, "arena");
  Arena real(buffer.data(), buffer.bytes());
  std::vector<std::byte*> pieces;
  EXPECT_EQ(lay_out(real, &pieces), planned);  // it fits exactly
  EXPECT_EQ(real.used(), plan.used());
  EXPECT_FALSE(real.counting());
  EXPECT_EQ(pieces, (std::vector<std::byte*>{buffer.data(), buffer.data() + 64, buffer.data() + 128,
                                             buffer.data() + 256, buffer.data() + 256}));
}

TEST(Arena, CountingGivesNoPointers) {
  Arena plan;
  EXPECT_EQ(plan.take(100), nullptr);
}

TEST(Arena, RefusesMoreThanItHolds) {
  alignas(64) std::byte memory[128];
  Arena arena(memory, sizeof(memory));
  arena.take(65);
  EXPECT_THROW(arena.take(1), Error);
}

TEST(Arena, RefusesAMarkThatLiesAhead) {
  Arena arena;
  arena.take(64);
  EXPECT_THROW(arena.reset_to(65), Error);
  arena.reset();
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(arena.high_water(), 64u);
}

}  // namespace
}  // namespace ashlar
