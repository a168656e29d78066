// The emulator as a test sees it: options, device memory, what it found, and how a kernel is run.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct CUstream_st;  // cudaStream_t points to it

namespace ashlar::emu {

struct Options {
  uint64_t seed = 1;         // of the order in which lanes, warps and blocks run
  bool random_order = true;  // off: lanes, warps and blocks in ascending order
  bool check = true;         // off: no shadow memory; faults that the machine itself sees are still reported
  size_t max_shared_bytes = 163 * 1024;    // a block's limit on sm_80; sm_90 has 227 KB
  uint64_t max_block_accesses = 1u << 30;  // a block that goes on longer is taken for a hang
};

// Applies to launches that start later. Not for use while a kernel runs.
Options& options();

enum class Fault {
  kLaunch,         // grid, block or shared memory that the device would refuse
  kSharedBounds,   // shared memory outside of what the kernel declared
  kUninitialised,  // shared memory read before it was written
  kSharedRace,     // two threads of a block, one of them writing, and no barrier between
  kAsyncCopy,      // cp.async: touched while in flight, source changed, never waited for
  kGlobalBounds,   // outside of every allocation
  kGlobalRace,     // between blocks of a launch, or between threads of a block without a barrier
  kMisaligned,
  kIndex,       // a C array, by -fsanitize=bounds
  kDivergence,  // lanes disagree about a warp operation or a barrier
  kDeadlock,    // every live thread waits
  kHang,        // too many memory accesses: waits for something that cannot come
};

const char* fault_name(Fault fault);

struct Report {
  Fault fault;
  std::string text;  // what, in which kernel, block and thread
  const void* pc;    // of the access, or null when the text holds file and line
};

// The first reports since the last call (at most 8 different ones), oldest first; forgets them.
std::vector<Report> take_reports();
// The text with file and line. Runs addr2line, which takes a second on large programs.
std::string describe(const Report& report);

// Device memory: 256-byte aligned, 4 KB of dead space on both sides, filled with NaN. Kernels may touch nothing else,
// except constants of the program.
void* allocate(size_t bytes);
void release(void* memory);
// The allocation that holds `bytes` at `memory`, so that a copy between host and device can be checked.
bool is_allocated(const void* memory, size_t bytes);

// What a stand-in for the CUDA runtime adds. Set before the first launch.
struct Hooks {
  // Puts a launch on its stream; null: it runs at once.
  void (*enqueue)(CUstream_st* stream, const std::string& name, std::function<void()> work) = nullptr;
  // Called at the end of a launch, on its thread, for every stretch of global memory that it read or wrote.
  void (*touched)(const void* memory, size_t bytes, bool write) = nullptr;
};
Hooks& hooks();

// A kernel with its arguments; the kernel may read [arguments, arguments + bytes).
struct Body {
  void (*call)(const void* arguments);
  const void* arguments;
  size_t bytes;
};

// Runs every block of the grid to its end, one at a time, on the calling thread. Other threads may run kernels of
// their own meanwhile. A fault that leaves no sensible continuation ends the launch.
void run(dim3 grid, dim3 block, size_t dynamic_shared_bytes, const char* name, const Body& body);

// What the last launch of this thread did.
struct Statistics {
  uint64_t blocks, switches, warp_operations, shared_accesses, global_accesses;
  uint64_t ldmatrix_phases, ldmatrix_conflicts;  // 8 rows each; extra passes that bank conflicts would cost
};
Statistics last_statistics();

}  // namespace ashlar::emu
