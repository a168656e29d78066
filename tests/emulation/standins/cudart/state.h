// The state behind the stand-in. All of it is guarded by one mutex; operations run outside of it.
//
// Order is checked with vector clocks. Each operation is one tick of its stream, and carries the last tick of every
// stream that is sure to be over when it starts: by stream order, by the events its stream waited for, and by what the
// host had waited for when it enqueued it.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "tests/emulation/standins/cudart/standin.h"

namespace ashlar::standin {

using Clock = std::vector<uint64_t>;  // by stream id
void merge(Clock& clock, const Clock& other);

struct Operation {
  std::string text;  // "cudaMemcpyAsync #12 on stream 3"
  int device = 0;
  int stream_id = 0;
  uint64_t number = 0;  // on its stream, from 1
  Clock clock;
};
using OperationRef = std::shared_ptr<const Operation>;

struct Stream {
  struct Work {
    OperationRef operation;
    std::function<void()> run;
  };

  int id = 0;
  int device = 0;
  int priority = 0;
  std::deque<Work> queue;
  uint64_t submitted = 0;
  uint64_t finished = 0;
  uint64_t demanded = 0;  // operations up to this one are waited for
  Clock clock;
  bool closing = false;
  std::mt19937_64 random;
  std::condition_variable wake;        // for the worker
  std::condition_variable progressed;  // for those who wait for operations
  std::thread worker;
};
using StreamRef = std::shared_ptr<Stream>;

struct Event {
  int device = 0;
  StreamRef stream;  // of the last record; null: never recorded
  uint64_t number = 0;
  Clock clock;
};

// A stretch of an allocation with one history: who wrote it last, and who has read it since.
struct Cell {
  OperationRef writer;
  std::vector<OperationRef> readers;  // the last of each stream
};

struct Allocation {
  std::string text;  // "device buffer #3"
  std::byte* data = nullptr;
  size_t bytes = 0;
  int device = 0;                // -1: pinned
  std::byte* mapping = nullptr;  // null: came from Config::allocate
  size_t mapping_bytes = 0;
  std::map<size_t, Cell> cells;  // by first byte; each reaches to the next
};

struct State {
  std::mutex mutex;
  Config config;
  std::vector<cudaError_t> sticky;  // by device
  std::vector<std::string> sticky_text;
  std::vector<size_t> used_bytes;
  size_t pinned_bytes = 0;
  std::vector<Clock> host_clocks;  // by device: what its host thread has waited for
  std::map<Stream*, StreamRef> streams;
  std::set<Event*> events;
  std::map<uintptr_t, Allocation> allocations;  // by address
  std::map<uintptr_t, Allocation> freed;        // addresses are not used again
  int num_streams = 0;
  int num_buffers = 0;
  int num_operations = 0;
  std::vector<std::string> reports;
  std::deque<std::string> error_texts;  // what cudaGetErrorString returned stays valid
  std::mutex data;                      // held while bytes move, so that planted races are none to ThreadSanitizer
};
State& state();
using Lock = std::unique_lock<std::mutex>;

// Errors (errors.cpp). All return what the call returns.
cudaError_t finish(cudaError_t status);                           // notes the thread's last error
cudaError_t finish(int device, cudaError_t status);               // the device's standing error comes first
cudaError_t refuse(cudaError_t status, const std::string& text);  // a report, and an error of this call only
void poison(int device, const std::string& text);                 // a report, and an error of all later calls
bool has_driver(cudaError_t* status);
int current_device();

// Streams (streams.cpp), with the state locked.
StreamRef find_stream(cudaStream_t handle);  // null: no such stream
StreamRef start_stream(int device, int priority);
void stop_stream(Lock& lock, const StreamRef& stream);  // after its work is done
OperationRef submit(Stream& stream, const std::string& name, std::function<void()> run);
void demand_until(Stream& stream, uint64_t number);
// Waits until operation `number` is over; false at the deadline, with a report.
bool wait_until(Lock& lock, const StreamRef& stream, uint64_t number);
const OperationRef& running_operation();  // of the calling thread

// Memory (memory.cpp), with the state locked.
struct Place {
  Allocation* allocation = nullptr;  // null: not ours, or not all of it
  std::string text;                  // "device buffer #3 at offset 8", or what is wrong with it
};
Place locate(const void* memory, size_t bytes);
void touch_cells(Allocation& allocation, size_t begin, size_t end, Access access);
void release(Allocation& allocation);  // gives the memory back

}  // namespace ashlar::standin
