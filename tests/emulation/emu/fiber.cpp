#include "tests/emulation/emu/fiber.h"

#include <sys/mman.h>

#include <new>

// rdi: where to save, rsi: what to load. rbp, rbx and r12 to r15 belong to the caller.
asm(R"(
.text
.globl ashlar_emu_switch
.type ashlar_emu_switch,@function
ashlar_emu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size ashlar_emu_switch,.-ashlar_emu_switch
)");

namespace ashlar::emu {
namespace {
constexpr size_t kStride = FiberStacks::kStackBytes + FiberStacks::kGuardBytes;
}

FiberStacks::FiberStacks(size_t count) : bytes_(count * kStride) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  memory_ = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < count; ++i) {  // stacks grow down, so the guard lies below
    if (mprotect(memory_ + i * kStride, kGuardBytes, PROT_NONE) != 0) {
      throw std::bad_alloc();
    }
  }
}

FiberStacks::~FiberStacks() {
  munmap(memory_, bytes_);
}

void* FiberStacks::prepare(size_t index, void (*entry)()) {
  // Stacks start 64 bytes apart within their pages: at equal offsets all threads' locals would share a cache set.
  const size_t top = (index + 1) * kStride - index % 32 * 64;
  auto* stack = reinterpret_cast<uintptr_t*>(memory_ + top);
  *--stack = 0;  // keeps the stack aligned to 16 bytes plus the return address, as at every function's entry
  *--stack = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) {
    *--stack = 0;
  }
  return stack;
}

}  // namespace ashlar::emu
