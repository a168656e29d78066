// Where memory lives and work runs. The CPU device stands in for every other one: kernels and communicators see only
// these interfaces.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ashlar {

enum class DeviceKind { kCpu, kCuda };

class Device;

// Owns a piece of device memory, 64-byte aligned at least. Movable, freed at destruction. Not zeroed.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, std::byte* data, size_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A point in a stream that another stream or the host can wait for.
class Event {
 public:
  virtual ~Event() = default;
};

// An ordered queue of work on one device. "Stream-ordered" means: returns at once, happens after all earlier work.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;  // Stream-ordered.
  virtual void fill_zero(void* dst, size_t bytes) = 0;              // Stream-ordered.
  virtual void record(Event& event) = 0;                            // Stream-ordered.
  virtual void wait(const Event& event) = 0;                        // Stream-ordered.
  virtual void synchronize() = 0;  // Blocks the host. Throws what failed earlier in the stream.
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  // Blocks the host. `what` names the use in the out-of-memory error.
  Buffer allocate(size_t bytes, const std::string& what);

  // Allocations since start, so that a test can see that a step makes none.
  int64_t num_allocations() const { return num_allocations_.load(); }
  int64_t allocated_bytes() const { return allocated_bytes_.load(); }

 protected:
  virtual std::byte* allocate_bytes(size_t bytes) = 0;  // nullptr when memory is out
  virtual void free_bytes(std::byte* data, size_t bytes) noexcept = 0;

 private:
  friend class Buffer;
  std::atomic<int64_t> num_allocations_{0};
  std::atomic<int64_t> allocated_bytes_{0};
};

}  // namespace ashlar
