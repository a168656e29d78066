// The state of one emulated multiprocessor: an OS thread that runs one block at a time, every CUDA thread a fiber.
// Private to the emulator.
#pragma once

#include <vector_types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulation/emu/emulator.h"
#include "tests/emulation/emu/fiber.h"
#include "tests/emulation/emu/kernel_calls.h"
#include "tests/emulation/emu/touched.h"

namespace ashlar::emu {

inline constexpr unsigned kMaxThreads = 1024;
inline constexpr unsigned kMaxWarps = kMaxThreads / 32;
inline constexpr size_t kSharedCapacity = 256 * 1024;  // of the arena; Options::max_shared_bytes is the device's limit
inline constexpr size_t kDynamicOffset = 1024;         // so that shared address 0 and its neighbourhood are dead
inline constexpr size_t kRedZone = 128;                // dead bytes between shared arrays

// Where an access was made: an instruction, or a line given by the wrapper that made it.
struct Place {
  const void* pc = nullptr;
  Site site{};
};

struct AsyncCopy {
  std::byte* destination;
  const std::byte* source;
  uint32_t bytes;         // 16
  uint32_t source_bytes;  // 16, or 0: the destination becomes zeros
  uint32_t group;
  std::byte seen[16];  // the source when the copy was issued
};

struct Thread {
  void* stack_pointer = nullptr;
  uint32_t copy_group = 0;
  std::vector<AsyncCopy> copies;  // in flight, oldest first
};

// Lanes of a warp that meet in one operation.
struct Meeting {
  uint32_t mask, arrived;
  WarpOperation operation;
  const char* what;
  Site site;
};

// Happens-before inside a warp. `time` counts completed __syncwarps; accesses of lane u made before known[t][u] happen
// before what lane t does now.
struct Warp {
  uint32_t live, ready;
  uint32_t time;
  uint32_t known[32][32];
  int num_meetings;
  Meeting meetings[32];
  void* slots[32];
};

// Shadow of one byte of shared memory. Epochs count __syncthreads and are 1 at least; 0 means never.
struct SharedByte {
  enum Flag : uint8_t { kDeclared = 1, kInitialised = 2, kInFlight = 4 };
  uint32_t write_epoch, write_time;
  uint32_t read_epoch, read_time, read_lanes;
  uint16_t writer;    // thread
  uint8_t read_warp;  // whose lanes read_lanes are
  uint8_t many_warps : 1, flags : 3;
};

// A stretch of global memory and its shadow, as global_memory.cpp keeps it.
struct GlobalRange {
  uintptr_t begin = 0, end = 0;
  struct GlobalCell* cells = nullptr;
};

struct Machine {
  Machine();
  ~Machine();

  std::string thread_text() const;  // " [kernel block (1,0,0) thread 5]"

  FiberStacks stacks{kMaxThreads};
  void* host_stack_pointer = nullptr;
  Thread threads[kMaxThreads];
  Lane lanes[kMaxThreads];
  Warp warps[kMaxWarps];
  unsigned num_threads = 0, num_warps = 0, num_live = 0;
  unsigned current = 0;  // thread
  uint32_t ready_warps = 0;
  uint64_t random_state = 1;
  Options options;

  // The barrier that threads wait at.
  uint32_t epoch = 1;
  unsigned num_arrived = 0;
  BarrierKind barrier_kind = BarrierKind::kPlain;
  int barrier_sum = 0, barrier_result = 0;
  Site barrier_site{};

  std::byte* shared = nullptr;
  std::vector<SharedByte> shared_bytes;
  size_t dynamic_bytes = 0, shared_end = 0, static_bytes = 0;
  std::vector<std::pair<const void*, void*>> static_arrays;

  const Body* body = nullptr;
  std::string kernel_name;
  uint32_t launch = 0, block = 0;
  uint64_t accesses_left = 0;
  bool aborted = false;
  Site operation_site{};  // of the warp operation being executed
  Statistics statistics{};

  TouchedRanges read, written;  // by this launch, when somebody wants to know
  GlobalRange recent[4];        // where this machine's last global accesses fell
  unsigned next_recent = 0;
  uint64_t ranges_version = 0;
};

// The machine of the calling OS thread; null outside of a launch.
extern thread_local Machine* machine __attribute__((tls_model("initial-exec")));

// report.cpp
void add_report(Fault fault, const Place& place, const std::string& text);
// Ends the launch: goes back to run(), leaving all fibers behind.
[[noreturn]] void abort_launch();

// schedule.cpp
uint32_t random_number(Machine& m);
void start_block(Machine& m);  // returns when the block has ended or the launch was aborted

// shared_memory.cpp
void reset_shared(Machine& m, size_t dynamic_bytes);
// One access of `bytes` at an offset of the shared arena by the lanes `lanes` of warp `warp`.
void shared_access(Machine& m, size_t offset, size_t bytes, bool write, unsigned warp, uint32_t lanes,
                   const Place& place);
// Whether something that `other` did at (epoch, time) may happen at the same time as what `lanes` of `warp` do now.
bool is_concurrent(const Machine& m, unsigned warp, uint32_t lanes, unsigned other, uint32_t epoch, uint32_t time);

// global_memory.cpp
enum class AccessKind { kRead, kWrite, kAtomic };
// Returns false when the address lies in no allocation.
bool global_access(Machine& m, uintptr_t address, size_t bytes, AccessKind kind, const Place& place);

// async_copy.cpp
void end_copies(Thread& thread);

// access.cpp: any access of the running CUDA thread.
void access(const void* address, size_t bytes, AccessKind kind, size_t alignment, const Place& place);

}  // namespace ashlar::emu
