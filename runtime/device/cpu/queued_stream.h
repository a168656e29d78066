// A CPU stream with a worker thread: work is enqueued by the host and runs later, in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {

// Counts how often it was recorded (enqueued) and how often that point was reached. A wait waits for the last record
// enqueued before the wait itself.
class CpuEvent final : public Event {
 public:
  uint64_t announce();          // a record was enqueued; returns its number
  void reach(uint64_t number);  // the stream came to that record
  void record_done() { reach(announce()); }
  uint64_t announced() const;
  void wait_for(uint64_t number) const;  // Blocks the calling thread.
  bool reached() const override;
  void synchronize() const override { wait_for(announced()); }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t announced_ = 0;
  uint64_t reached_ = 0;
};

class QueuedStream final : public CpuStream {
 public:
  explicit QueuedStream(Device& device, TaskObserver* observer = nullptr);
  ~QueuedStream() override;

  Device& device() const override { return device_; }
  // Stream-ordered; blocks the host only while the queue is full.
  void enqueue(Task task, std::string_view op) override;
  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;

 private:
  static constexpr size_t kQueueLength = 256;

  void run();

  struct Entry {
    Task task;
    std::string_view op;
  };

  Device& device_;
  TaskObserver* observer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> queue_;  // a ring
  uint64_t num_enqueued_ = 0;
  uint64_t num_finished_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace ashlar
