// Streams as worker threads, events, and the calls on both.
#include <algorithm>
#include <chrono>

#include "tests/emulation/standins/cudart/state.h"

namespace ashlar::standin {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kDeadline{60};  // of every wait: a program that waits longer will not go on
constexpr int kGreatestPriority = -5;

thread_local OperationRef the_operation;
thread_local bool this_thread_enqueues = false;  // has enqueued something, on any device

microseconds delay_of(Stream& stream) {
  switch (state().config.delays) {
    case Delays::kNone:
      return microseconds(0);
    case Delays::kRandom: {
      const uint64_t drawn = stream.random();
      return microseconds(drawn % 2 == 0 ? 0 : drawn / 2 % 100);
    }
    case Delays::kLate:
      return milliseconds(50);
  }
  return microseconds(0);
}

void work(const StreamRef& stream) {
  State& s = state();
  Lock lock(s.mutex);
  while (true) {
    stream->wake.wait(lock, [&] { return !stream->queue.empty() || stream->closing; });
    if (stream->queue.empty()) {
      return;
    }
    Stream::Work next = std::move(stream->queue.front());
    stream->queue.pop_front();
    const uint64_t number = next.operation->number;
    if (const microseconds delay = delay_of(*stream); delay.count() > 0) {
      const bool until_demanded = s.config.delays == Delays::kLate;
      stream->wake.wait_for(lock, delay,
                            [&] { return until_demanded && (stream->demanded >= number || stream->closing); });
    }
    if (next.run && s.sticky[static_cast<size_t>(stream->device)] == cudaSuccess) {  // a fault ends all work
      lock.unlock();
      the_operation = next.operation;
      next.run();
      the_operation = nullptr;
      lock.lock();
    }
    stream->finished = number;
    stream->progressed.notify_all();
  }
}

}  // namespace

void merge(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) {
    clock[i] = std::max(clock[i], other[i]);
  }
}

const OperationRef& running_operation() {
  return the_operation;
}

StreamRef find_stream(cudaStream_t handle) {
  const auto found = state().streams.find(reinterpret_cast<Stream*>(handle));
  return found == state().streams.end() ? nullptr : found->second;
}

StreamRef start_stream(int device, int priority) {
  State& s = state();
  auto stream = std::make_shared<Stream>();
  stream->id = s.num_streams++;
  stream->device = device;
  stream->priority = priority;
  stream->clock.resize(static_cast<size_t>(s.num_streams));
  stream->random.seed(s.config.seed * 1000003 + static_cast<uint64_t>(stream->id));
  stream->worker = std::thread([stream] { work(stream); });
  s.streams[stream.get()] = stream;
  return stream;
}

void stop_stream(Lock& lock, const StreamRef& stream) {
  const StreamRef kept = stream;  // the argument may lie in the map
  state().streams.erase(kept.get());
  kept->closing = true;
  kept->wake.notify_all();
  lock.unlock();
  kept->worker.join();
  lock.lock();
}

OperationRef submit(Stream& stream, const std::string& name, std::function<void()> run) {
  State& s = state();
  this_thread_enqueues = true;
  merge(stream.clock, s.host_clocks[static_cast<size_t>(stream.device)]);
  auto operation = std::make_shared<Operation>();
  operation->text = name + " #" + std::to_string(++s.num_operations) + " on stream " + std::to_string(stream.id);
  operation->device = stream.device;
  operation->stream_id = stream.id;
  operation->number = ++stream.submitted;
  stream.clock[static_cast<size_t>(stream.id)] = operation->number;
  operation->clock = stream.clock;
  stream.queue.push_back({operation, std::move(run)});
  stream.wake.notify_all();
  return operation;
}

void demand_until(Stream& stream, uint64_t number) {
  if (stream.demanded < number) {
    stream.demanded = number;
    stream.wake.notify_all();
  }
}

bool wait_until(Lock& lock, const StreamRef& stream, uint64_t number) {
  demand_until(*stream, number);
  if (stream->progressed.wait_for(lock, kDeadline, [&] { return stream->finished >= number; })) {
    return true;
  }
  poison(stream->device, "stream " + std::to_string(stream->id) + " has not come to its operation " +
                             std::to_string(number) + " within " + std::to_string(kDeadline.count()) +
                             " seconds; it finished " + std::to_string(stream->finished));
  return false;
}

bool enqueue(cudaStream_t handle, const std::string& name, std::function<void()> run) {
  const Lock lock(state().mutex);
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) {
    refuse(cudaErrorInvalidResourceHandle, name + ": no such stream");
    return false;
  }
  if (stream->device != current_device()) {
    refuse(cudaErrorInvalidResourceHandle, name + ": stream " + std::to_string(stream->id) + " belongs to device " +
                                               std::to_string(stream->device) + ", the current device is " +
                                               std::to_string(current_device()));
    return false;
  }
  if (finish(stream->device, cudaSuccess) != cudaSuccess) {
    return false;
  }
  submit(*stream, name, std::move(run));
  return true;
}

void demand(cudaStream_t handle) {
  const Lock lock(state().mutex);
  if (const StreamRef stream = find_stream(handle)) {
    demand_until(*stream, stream->submitted);
  }
}

}  // namespace ashlar::standin

using namespace ashlar::standin;

namespace {

// The default stream is refused like any other that is none: it is ordered with all others, which hides missing waits.
cudaError_t no_stream(const char* call) {
  return refuse(cudaErrorInvalidResourceHandle, std::string(call) + ": no such stream (the default stream is none)");
}

cudaError_t no_event(const char* call) {
  return refuse(cudaErrorInvalidResourceHandle, std::string(call) + ": no such event");
}

Event* find_event(cudaEvent_t handle) {
  auto* event = reinterpret_cast<Event*>(handle);
  return state().events.contains(event) ? event : nullptr;
}

void host_has_seen(int device, const Clock& clock) {
  merge(state().host_clocks[static_cast<size_t>(device)], clock);
}

// A thread that only watches, and never enqueues, orders nothing by what it sees.
void host_has_asked(int device, const Clock& clock) {
  if (this_thread_enqueues) {
    host_has_seen(device, clock);
  }
}

}  // namespace

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  const Lock lock(state().mutex);
  *least = 0;
  *greatest = kGreatestPriority;
  return finish(current_device(), cudaSuccess);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned int flags, int priority) {
  const Lock lock(state().mutex);
  cudaError_t status;
  if (!has_driver(&status)) {
    return finish(status);
  }
  if (flags != cudaStreamNonBlocking) {
    return refuse(cudaErrorInvalidValue, "cudaStreamCreateWithPriority: a stream that is ordered with the default one");
  }
  if (const cudaError_t standing = finish(current_device(), cudaSuccess); standing != cudaSuccess) {
    return standing;
  }
  const StreamRef stream = start_stream(current_device(), std::clamp(priority, kGreatestPriority, 0));
  *handle = reinterpret_cast<cudaStream_t>(stream.get());
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  const Lock lock(state().mutex);
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) {
    return no_stream("cudaStreamGetPriority");
  }
  *priority = stream->priority;
  return finish(stream->device, cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Lock lock(state().mutex);
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) {
    return no_stream("cudaStreamDestroy");
  }
  stop_stream(lock, stream);  // its work ends first; the host does not count as having waited for it
  return finish(stream->device, cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Lock lock(state().mutex);
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) {
    return no_stream("cudaStreamSynchronize");
  }
  const Clock clock = stream->clock;
  if (wait_until(lock, stream, stream->submitted)) {
    host_has_seen(stream->device, clock);
  }
  return finish(stream->device, cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const Lock lock(state().mutex);
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) {
    return no_stream("cudaStreamQuery");
  }
  demand_until(*stream, stream->submitted);  // whoever asks will ask again
  if (stream->finished < stream->submitted) {
    return finish(stream->device, cudaErrorNotReady);
  }
  host_has_asked(stream->device, stream->clock);
  return finish(stream->device, cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned int flags) {
  const Lock lock(state().mutex);
  cudaError_t status;
  if (!has_driver(&status)) {
    return finish(status);
  }
  if ((flags & cudaEventDisableTiming) == 0) {
    return refuse(cudaErrorInvalidValue, "cudaEventCreateWithFlags: the stand-in has no time to tell");
  }
  auto* event = new Event;
  event->device = current_device();
  state().events.insert(event);
  *handle = reinterpret_cast<cudaEvent_t>(event);
  return finish(current_device(), cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const Lock lock(state().mutex);
  Event* const event = find_event(handle);
  if (event == nullptr) {
    return no_event("cudaEventDestroy");
  }
  const int device = event->device;
  state().events.erase(event);
  delete event;
  return finish(device, cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  const Lock lock(state().mutex);
  Event* const event = find_event(handle);
  const StreamRef stream = find_stream(stream_handle);
  if (event == nullptr) {
    return no_event("cudaEventRecord");
  }
  if (stream == nullptr) {
    return no_stream("cudaEventRecord");
  }
  if (event->device != stream->device) {
    return refuse(cudaErrorInvalidResourceHandle, "cudaEventRecord: event and stream are of different devices");
  }
  const OperationRef operation = submit(*stream, "cudaEventRecord", nullptr);
  event->stream = stream;
  event->number = operation->number;
  event->clock = operation->clock;
  return finish(stream->device, cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned int) {
  const Lock lock(state().mutex);
  const Event* const event = find_event(handle);
  const StreamRef stream = find_stream(stream_handle);
  if (event == nullptr) {
    return no_event("cudaStreamWaitEvent");
  }
  if (stream == nullptr) {
    return no_stream("cudaStreamWaitEvent");
  }
  if (event->stream != nullptr) {
    merge(stream->clock, event->clock);
    submit(*stream, "cudaStreamWaitEvent", [recorded = event->stream, number = event->number] {
      Lock worker_lock(state().mutex);
      wait_until(worker_lock, recorded, number);
    });
  }
  return finish(stream->device, cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const Lock lock(state().mutex);
  const Event* const event = find_event(handle);
  if (event == nullptr) {
    return no_event("cudaEventQuery");
  }
  if (event->stream != nullptr) {
    demand_until(*event->stream, event->number);  // whoever asks will ask again
    if (event->stream->finished < event->number) {
      return finish(event->device, cudaErrorNotReady);
    }
    host_has_asked(event->device, event->clock);
  }
  return finish(event->device, cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Lock lock(state().mutex);
  const Event* const event = find_event(handle);
  if (event == nullptr) {
    return no_event("cudaEventSynchronize");
  }
  const int device = event->device;
  const Clock clock = event->clock;
  if (event->stream != nullptr && wait_until(lock, StreamRef(event->stream), event->number)) {
    host_has_seen(device, clock);
  }
  return finish(device, cudaSuccess);
}

}  // extern "C"
