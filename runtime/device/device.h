// Where memory lives and work runs. The CPU device stands in for every other one: kernels and communicators see only
// these interfaces.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/device/memory_count.h"

namespace ashlar {

enum class DeviceKind { kCpu, kCuda };

// Which end of a copy: memory of the device, or memory of the host that the device copies to and from by itself.
enum class MemoryKind { kDevice, kHost };

// Work of a stream of higher priority goes first where both are ready. Communication is started before the compute it
// overlaps and must not queue behind it.
enum class StreamPriority { kCompute, kCommunication };

class Device;

// Owns a piece of memory, 64-byte aligned at least. Movable, freed at destruction, after all work on it was waited for
// and before its device goes. Not zeroed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, MemoryKind kind, MemoryItem item, std::byte* data, size_t bytes)
      : device_(device), kind_(kind), item_(item), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  MemoryKind kind_ = MemoryKind::kDevice;
  MemoryItem item_ = MemoryItem::kOther;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A point in a stream that another stream or the host can wait for. Recording it again moves it; an event that was
// never recorded counts as reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool reached() const = 0;      // Whether the stream has come to the last record. Throws what failed in it.
  virtual void synchronize() const = 0;  // Blocks the host until the stream has come to the last record.
};

// An ordered queue of work on one device. "Stream-ordered" means: returns at once, happens after all earlier work.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;
  // Stream-ordered. Each end is memory of this device or of its allocate_host(); a GPU that is given other host memory
  // may block the host. The ends do not overlap.
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;
  virtual void fill_zero(void* dst, size_t bytes) = 0;  // Stream-ordered.
  virtual void record(Event& event) = 0;                // Stream-ordered.
  virtual void wait(const Event& event) = 0;            // Stream-ordered.
  virtual void synchronize() = 0;                       // Blocks the host. Throws what failed earlier in the stream.

  // What a library above keeps per stream (handles, scratch): one owner, freed with the stream, after its work is done.
  void attach(std::shared_ptr<void> state) { attached_ = std::move(state); }
  void* attached() const { return attached_.get(); }

 private:
  std::shared_ptr<void> attached_;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const { return "CPU"; }  // for messages: "GPU 2", as this process counts them
  std::unique_ptr<Stream> create_stream(StreamPriority priority = StreamPriority::kCompute) {
    return make_stream(priority);
  }
  virtual std::unique_ptr<Event> create_event() = 0;

  // Blocks the host. `what` names the use in the out-of-memory error, `item` in what plans and reports tell.
  Buffer allocate(size_t bytes, const std::string& what, MemoryItem item = MemoryItem::kOther);

  // Blocks the host. Memory that the host reads and writes and that this device's streams copy to and from on their
  // own: pinned for a GPU, ordinary memory for the CPU.
  Buffer allocate_host(size_t bytes, const std::string& what, MemoryItem item = MemoryItem::kOther);

  // What layers above share per device while somebody holds it (copies' pinned memory), freed with its last holder. Of
  // one thread.
  void attach(const std::shared_ptr<void>& state) { attached_ = state; }
  std::shared_ptr<void> attached() const { return attached_.lock(); }

  // Device memory that no process holds now; empty where it is the host's.
  virtual std::optional<int64_t> unheld_bytes() const { return std::nullopt; }

  // Allocations of both kinds since start, so that a test can see that a step makes none.
  int64_t num_allocations() const { return num_allocations_.load(); }
  int64_t allocated_bytes() const { return memory_uses(MemoryKind::kDevice).total.now; }
  // Bytes now and at most since start. Memory that goes past allocate() is not in it: what libraries take for
  // themselves, and the host's ordinary memory.
  MemoryUses memory_uses(MemoryKind kind) const { return counts_[static_cast<size_t>(kind)].uses(); }

 protected:
  virtual std::unique_ptr<Stream> make_stream(StreamPriority priority) = 0;
  virtual std::byte* allocate_bytes(MemoryKind kind, size_t bytes) = 0;  // nullptr when memory is out
  virtual void free_bytes(MemoryKind kind, std::byte* data, size_t bytes) noexcept = 0;

 private:
  friend class Buffer;
  std::atomic<int64_t> num_allocations_{0};
  std::array<MemoryCount, 2> counts_;  // by MemoryKind
  std::weak_ptr<void> attached_;
};

}  // namespace ashlar
