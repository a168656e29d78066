// Every load and store of a kernel ends here. The kernels' object files are compiled with -fsanitize=thread, whose
// instrumentation calls __tsan_read4(p) and the like before each access, and are linked with these functions instead of
// the sanitizer's library. -fsanitize=alignment,bounds adds checks of vector casts and C arrays, made before the
// optimiser can split a vector access into smaller ones.
#include <fmt/format.h>

#include "tests/emulation/emu/machine.h"

namespace ashlar::emu {

void access(const void* pointer, size_t bytes, AccessKind kind, size_t alignment, const Place& place) {
  if (current_lane == nullptr) {
    return;  // host code of a .cu file
  }
  Machine& m = *machine;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (m.stacks.contains(address)) {
    return;  // registers and local memory
  }
  const char* what = kind == AccessKind::kRead ? "read" : "write";
  if (m.accesses_left-- == 0) {
    add_report(Fault::kHang, place, fmt::format("more than {} accesses of one block", m.options.max_block_accesses));
    abort_launch();
  }
  if (address % alignment != 0) {
    add_report(Fault::kMisaligned, place, fmt::format("{}-byte {} of {}", bytes, what, pointer));
    abort_launch();
  }
  const uintptr_t shared_offset = address - reinterpret_cast<uintptr_t>(m.shared);
  if (shared_offset < kSharedCapacity) {
    shared_access(m, shared_offset, bytes, kind != AccessKind::kRead, m.current / 32, 1u << m.current % 32, place);
    return;
  }
  const uintptr_t argument_offset = address - reinterpret_cast<uintptr_t>(m.body->arguments);
  if (argument_offset < m.body->bytes && kind == AccessKind::kRead) {
    return;
  }
  if (!global_access(m, address, bytes, kind, place)) {
    add_report(Fault::kGlobalBounds, place, fmt::format("{} of {} bytes at {}", what, bytes, pointer));
    abort_launch();
  }
}

namespace {

void check_is_global(const void* pointer, const void* pc) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(machine->shared);
  if (offset < kSharedCapacity || machine->stacks.contains(reinterpret_cast<uintptr_t>(pointer))) {
    add_report(Fault::kGlobalBounds, {pc, {}}, "a load or store of global memory with an address that is not global");
    abort_launch();
  }
}

}  // namespace

void check_read(const void* pointer, size_t bytes, const void* pc) {
  check_is_global(pointer, pc);
  access(pointer, bytes, AccessKind::kRead, bytes, {pc, {}});
}
void check_write(const void* pointer, size_t bytes, const void* pc) {
  check_is_global(pointer, pc);
  access(pointer, bytes, AccessKind::kWrite, bytes, {pc, {}});
}
void check_atomic(const void* pointer, size_t bytes, const void* pc) {
  access(pointer, bytes, AccessKind::kAtomic, bytes, {pc, {}});
}

}  // namespace ashlar::emu

// The names are the compiler's.
extern "C" {

using ashlar::emu::access;
using ashlar::emu::AccessKind;

#define PLACE                       \
  {                                 \
    __builtin_return_address(0), {} \
  }
#define HOOKS(bytes)                                    \
  void __tsan_read##bytes(void* p) {                    \
    access(p, bytes, AccessKind::kRead, bytes, PLACE);  \
  }                                                     \
  void __tsan_write##bytes(void* p) {                   \
    access(p, bytes, AccessKind::kWrite, bytes, PLACE); \
  }                                                     \
  void __tsan_unaligned_read##bytes(void* p) {          \
    access(p, bytes, AccessKind::kRead, 1, PLACE);      \
  }                                                     \
  void __tsan_unaligned_write##bytes(void* p) {         \
    access(p, bytes, AccessKind::kWrite, 1, PLACE);     \
  }                                                     \
  void __tsan_volatile_read##bytes(void* p) {           \
    access(p, bytes, AccessKind::kRead, bytes, PLACE);  \
  }                                                     \
  void __tsan_volatile_write##bytes(void* p) {          \
    access(p, bytes, AccessKind::kWrite, bytes, PLACE); \
  }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
#undef HOOKS

void __tsan_read_range(void* p, unsigned long bytes) {
  access(p, bytes, AccessKind::kRead, 1, PLACE);
}
void __tsan_write_range(void* p, unsigned long bytes) {
  access(p, bytes, AccessKind::kWrite, 1, PLACE);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

struct UbsanMisaligned {
  const char* file;
  uint32_t line, column;
  const void* type;
  uint8_t log_alignment, kind;
};
struct UbsanIndex {
  const char* file;
  uint32_t line, column;
  const void *array_type, *index_type;
};

void __ubsan_handle_type_mismatch_v1(const UbsanMisaligned* check, const void* p) {
  if (ashlar::emu::current_lane != nullptr) {
    ashlar::emu::add_report(ashlar::emu::Fault::kMisaligned, {nullptr, {check->file, static_cast<int>(check->line)}},
                            fmt::format("{} needs an alignment of {}", p, 1u << check->log_alignment));
    ashlar::emu::abort_launch();
  }
}

void __ubsan_handle_out_of_bounds(const UbsanIndex* check, const void* index) {
  if (ashlar::emu::current_lane != nullptr) {
    ashlar::emu::add_report(ashlar::emu::Fault::kIndex, {nullptr, {check->file, static_cast<int>(check->line)}},
                            fmt::format("array index {}", reinterpret_cast<intptr_t>(index)));
    ashlar::emu::abort_launch();
  }
}

}  // extern "C"
