// What the emulator's words for kernels (kernel_words.h) call. The kernels' object files are instrumented; the
// functions behind these declarations are not.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

namespace ashlar::emu {

struct Site {
  const char* file = nullptr;
  int line = 0;
};

// The built-in variables of one CUDA thread.
struct Lane {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
  unsigned lane;    // in its warp
  unsigned linear;  // in its block
};

extern thread_local const Lane* current_lane __attribute__((tls_model("initial-exec")));

// Const although they read a variable: in the life of one fiber the answer is one value, and the compiler may keep it.
uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
dim3 block_dimensions() __attribute__((const));
dim3 grid_dimensions() __attribute__((const));

enum class BarrierKind { kPlain, kOr, kAnd, kCount };
// __syncthreads and its voting forms.
int block_barrier(BarrierKind kind, int predicate, Site site);

// Collects the lanes of `mask`; the last to arrive executes `operation` on the slots of all, indexed by lane.
using WarpOperation = void (*)(void** slots, uint32_t mask);
void warp_operation(WarpOperation operation, uint32_t mask, void* slot, const char* what, Site site);
void sync_warp(uint32_t mask, Site site);

struct VoteSlot {
  int predicate;
  uint32_t ballot;
};
void vote(void** slots, uint32_t mask);
// Reports a shuffle that reads a lane outside of its mask.
void shuffle_outside_mask(int lane, int source);

struct LdmatrixSlot {
  uint32_t address;     // shared, of one row of 16 bytes
  uint32_t* registers;  // num_matrices
  int num_matrices;
  bool transpose;
};
void ldmatrix(void** slots, uint32_t mask);

struct MmaSlot {
  float* d;           // [4], read and written
  const uint32_t* a;  // [4]
  const uint32_t* b;  // [2]
};
// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
void mma_m16n8k16_bf16(void** slots, uint32_t mask);
// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
void mma_m16n8k16_f16(void** slots, uint32_t mask);

// Shared memory. `tag` is one address per declaration.
void* static_shared(const void* tag, size_t bytes);
unsigned char* dynamic_shared();
uint32_t shared_address(const void* pointer);
void* shared_pointer(uint32_t address);

// cp.async of 16 bytes; source_bytes 0 writes zeros and does not touch the source.
void copy_async(uint32_t destination, const void* source, uint32_t source_bytes, Site site);
void copy_async_commit();
void copy_async_wait(unsigned groups_left);

// Checks an access that the compiler's hooks will not see: vector accesses of the wrappers (global memory only),
// and atomics. `pc` is the
// wrapper's return address, which finds the kernel's line even through helpers that were inlined.
void check_read(const void* pointer, size_t bytes, const void* pc);
void check_write(const void* pointer, size_t bytes, const void* pc);
void check_atomic(const void* pointer, size_t bytes, const void* pc);

}  // namespace ashlar::emu
