// A strict stand-in for the CUDA runtime, as a test sees it: what machine it plays, what it found, and how other
// stand-ins (kernels, NCCL) put work on its streams. CUDA's own header declares the calls it answers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ashlar::standin {

struct DeviceSpec {
  std::string name = "Stand-in A100";
  size_t memory_bytes = size_t{256} << 20;  // cudaMalloc fails beyond
  int compute_major = 8;
  int compute_minor = 0;
  int compute_mode = cudaComputeModeDefault;
};

// When the work of a stream runs. A program must be right with all of them.
enum class Delays {
  kNone,    // as soon as its stream comes to it
  kRandom,  // half of the operations wait up to 100 microseconds first, drawn from the seed
  kLate,    // only when somebody waits for it; after 50 ms at the latest, so that polls of other kinds come to an end
};

struct Config {
  uint64_t seed = 1;
  Delays delays = Delays::kRandom;
  std::vector<DeviceSpec> devices = std::vector<DeviceSpec>(2);
  size_t pinned_bytes = size_t{256} << 20;  // cudaMallocHost fails beyond
  int driver_version = CUDART_VERSION;      // 0: no driver is loaded; an older major one is insufficient
  bool check_order = true;                  // off: only wrong values show a missing wait
  // Where device memory comes from; null: from the stand-in.
  void* (*allocate)(size_t bytes) = nullptr;
  void (*release)(void* memory) = nullptr;
};

// Blocks the host. Forgets streams, memory, errors and reports of before, and starts anew. Not while other threads call
// CUDA.
void reset(const Config& config = {});

// What programs did wrong since the last call, oldest first. Memory faults and missing waits also leave an error on
// their device that every later call returns, as a real fault does, so that no checked program ends well after one.
std::vector<std::string> take_reports();

// Streams, events and buffers that are still there.
std::vector<std::string> leaks();

// Stream-ordered. Work of another stand-in; `name` stands in reports. False, with CUDA's last error set, when the
// stream is none or belongs to a device that is not the current one.
bool enqueue(cudaStream_t stream, const std::string& name, std::function<void()> work);

// Called by the work that runs, before it reads or writes memory: looks for whoever touched it last without an event or
// a host wait between, and for memory that is not there. False: do not touch it.
enum class Access { kRead, kWrite };
bool touch(const void* memory, size_t bytes, Access access);

// Says that somebody waits, by other means than CUDA, for all that is on the stream now: it need not be late any more.
void demand(cudaStream_t stream);

}  // namespace ashlar::standin
