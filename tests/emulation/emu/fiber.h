// A fiber per CUDA thread: a stack, and a switch that saves what the x86-64 calling convention asks for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar::emu {

// Stacks for all threads of a block. Each is followed by a guard page, so that a stack that overflows ends the program
// instead of changing its neighbour.
class FiberStacks {
 public:
  static constexpr size_t kStackBytes = 64 * 1024;
  static constexpr size_t kGuardBytes = 4096;

  explicit FiberStacks(size_t count);
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  // A stack pointer that starts `entry` on stack `index` when it is switched to.
  void* prepare(size_t index, void (*entry)());
  bool contains(uintptr_t address) const { return address - reinterpret_cast<uintptr_t>(memory_) < bytes_; }

 private:
  std::byte* memory_;
  size_t bytes_;
};

// Saves the running fiber's stack pointer and goes on with another.
extern "C" void ashlar_emu_switch(void** saved_stack_pointer, void* next_stack_pointer);

}  // namespace ashlar::emu
