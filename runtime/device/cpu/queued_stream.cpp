#include "runtime/device/cpu/queued_stream.h"

#include <algorithm>

namespace ashlar {

uint64_t CpuEvent::announce() {
  const std::lock_guard lock(mutex_);
  return ++announced_;
}

void CpuEvent::reach(uint64_t number) {
  const std::lock_guard lock(mutex_);
  reached_ = std::max(reached_, number);
  changed_.notify_all();  // under the lock: a host that waited may destroy the event as soon as it has the lock
}

uint64_t CpuEvent::announced() const {
  const std::lock_guard lock(mutex_);
  return announced_;
}

bool CpuEvent::reached() const {
  const std::lock_guard lock(mutex_);
  return reached_ >= announced_;
}

void CpuEvent::wait_for(uint64_t number) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_ >= number; });
}

QueuedStream::QueuedStream(Device& device, TaskObserver* observer)
    : device_(device), observer_(observer), queue_(kQueueLength), worker_([this] { run(); }) {}

QueuedStream::~QueuedStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void QueuedStream::enqueue(Task task, std::string_view op) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_enqueued_ - num_finished_ < kQueueLength; });
    queue_[num_enqueued_ % kQueueLength] = {task, op};
    ++num_enqueued_;
  }
  changed_.notify_all();
}

void QueuedStream::record(Event& event) {
  auto* cpu_event = &static_cast<CpuEvent&>(event);
  const uint64_t number = cpu_event->announce();
  enqueue([=] { cpu_event->reach(number); }, "record");
}

void QueuedStream::wait(const Event& event) {
  const auto* cpu_event = &static_cast<const CpuEvent&>(event);
  const uint64_t number = cpu_event->announced();
  enqueue([=] { cpu_event->wait_for(number); }, "wait");
}

void QueuedStream::synchronize() {
  std::unique_lock lock(mutex_);
  const uint64_t target = num_enqueued_;
  changed_.wait(lock, [&] { return num_finished_ >= target; });
  if (failure_) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void QueuedStream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return num_finished_ < num_enqueued_ || stopping_; });
    if (num_finished_ == num_enqueued_) {
      return;
    }
    Entry entry = queue_[num_finished_ % kQueueLength];
    lock.unlock();
    std::exception_ptr failure;
    try {
      run_task(entry.task, entry.op, observer_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !failure_) {
      failure_ = failure;
    }
    ++num_finished_;
    changed_.notify_all();
  }
}

}  // namespace ashlar
