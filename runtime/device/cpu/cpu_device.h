// The CPU as a device, with two kinds of stream: inline (work runs at once in the caller) and queued (a worker thread
// runs it later, in order), so that stream order is really tested without a GPU.
#pragma once

#include <memory>

#include "runtime/device/cpu/task.h"
#include "runtime/device/device.h"

namespace ashlar {

enum class CpuStreamKind { kInline, kQueued };

// A stream that runs host functions. Every CPU kernel enters through enqueue().
class CpuStream : public Stream {
 public:
  virtual void enqueue(Task task) = 0;  // Stream-ordered.
  void copy(void* dst, const void* src, size_t bytes) override;
  void fill_zero(void* dst, size_t bytes) override;
};

// Pure. The stream as a CPU stream; throws when it belongs to another device.
CpuStream& cpu_stream(Stream& stream);

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuStreamKind kind = CpuStreamKind::kInline) : stream_kind_(kind) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::unique_ptr<Stream> create_stream() override;
  std::unique_ptr<Event> create_event() override;

 protected:
  std::byte* allocate_bytes(size_t bytes) override;
  void free_bytes(std::byte* data, size_t bytes) noexcept override;

 private:
  CpuStreamKind stream_kind_;
};

}  // namespace ashlar
