// The CPU as a device, with two kinds of stream: inline (work runs at once in the caller) and queued (a worker thread
// runs it later, in order), so that stream order is really tested without a GPU.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/device/cpu/task.h"
#include "runtime/device/device.h"

namespace ashlar {

enum class CpuStreamKind { kInline, kQueued };

// Told of every piece of work that ran on the device's streams, on the thread that ran it.
class TaskObserver {
 public:
  virtual ~TaskObserver() = default;
  virtual void finished(std::string_view op, double seconds) = 0;
};

// A stream that runs host functions. Every CPU kernel enters through enqueue().
class CpuStream : public Stream {
 public:
  // Stream-ordered. `op` names the work for observers; it must outlive the stream (a literal).
  virtual void enqueue(Task task, std::string_view op = "task") = 0;
  void copy(void* dst, const void* src, size_t bytes) override;
  void fill_zero(void* dst, size_t bytes) override;
};

// Runs the task, timed when somebody observes.
void run_task(Task& task, std::string_view op, TaskObserver* observer);

// Pure. The stream as a CPU stream; throws when it belongs to another device.
CpuStream& cpu_stream(Stream& stream);

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuStreamKind kind = CpuStreamKind::kInline) : stream_kind_(kind) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::unique_ptr<Event> create_event() override;

  // Streams created afterwards time their work and tell the observer, which outlives them. Null: nobody is told.
  void set_observer(TaskObserver* observer) { observer_ = observer; }

 protected:
  std::unique_ptr<Stream> make_stream(StreamPriority priority) override;  // all streams share the cores alike
  std::byte* allocate_bytes(MemoryKind kind, size_t bytes) override;      // both kinds are the same memory
  void free_bytes(MemoryKind kind, std::byte* data, size_t bytes) noexcept override;

 private:
  CpuStreamKind stream_kind_;
  TaskObserver* observer_ = nullptr;
};

}  // namespace ashlar
