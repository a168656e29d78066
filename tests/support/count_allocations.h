// Every operator new of a program counts for its thread. For one source of a program: it defines the operators.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace ashlar::test {
inline thread_local int64_t num_allocations = 0;
}  // namespace ashlar::test

// Not inlined: g++ would see malloc on one side and delete on the other and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++ashlar::test::num_allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
