// cp.async: the bytes arrive when their group is waited for, never before, and hold NaN until then. So a kernel that
// waits for too little is wrong in its values as well as reported.
#include <fmt/format.h>

#include <cstring>

#include "tests/emulation/emu/machine.h"

namespace ashlar::emu {
namespace {

void land(Machine& m, const AsyncCopy& copy) {
  if (copy.source_bytes > 0 && std::memcmp(copy.source, copy.seen, copy.source_bytes) != 0) {
    add_report(Fault::kAsyncCopy, {}, "the source of a cp.async changed while it was in flight");
  }
  std::memset(copy.destination, 0, copy.bytes);
  std::memcpy(copy.destination, copy.source, copy.source_bytes);
  const auto offset = static_cast<size_t>(copy.destination - m.shared);
  for (size_t i = offset; i < offset + copy.bytes; ++i) {
    SharedByte& byte = m.shared_bytes[i];
    byte.flags = SharedByte::kDeclared | SharedByte::kInitialised;
    byte.writer = static_cast<uint16_t>(m.current);
    byte.write_epoch = m.epoch;
    byte.write_time = m.warps[m.current / 32].time;
    byte.read_epoch = 0;
  }
}

}  // namespace

void copy_async(uint32_t destination, const void* source, uint32_t source_bytes, Site site) {
  constexpr uint32_t kBytes = 16;
  Machine& m = *machine;
  Thread& thread = m.threads[m.current];
  m.operation_site = site;
  const Place place{nullptr, site};
  const auto source_address = reinterpret_cast<uintptr_t>(source);
  if (destination % kBytes != 0 || (source_bytes > 0 && source_address % kBytes != 0)) {
    add_report(Fault::kMisaligned, place,
               fmt::format("cp.async of 16 bytes to shared address {} from {}", destination, source));
    abort_launch();
  }
  auto* target = static_cast<std::byte*>(shared_pointer(destination));
  const auto offset = static_cast<size_t>(target - m.shared);
  shared_access(m, offset, kBytes, true, m.current / 32, 1u << m.current % 32, place);
  if (source_bytes > 0 && !global_access(m, source_address, source_bytes, AccessKind::kRead, place)) {
    add_report(Fault::kGlobalBounds, place, fmt::format("source of a cp.async: {}", source));
    abort_launch();
  }
  if (m.options.check) {
    for (size_t i = offset; i < offset + kBytes; ++i) {
      m.shared_bytes[i].flags = SharedByte::kDeclared | SharedByte::kInFlight;
    }
  }
  std::memset(target, 0xFF, kBytes);
  AsyncCopy copy{target, static_cast<const std::byte*>(source), kBytes, source_bytes, thread.copy_group, {}};
  std::memcpy(copy.seen, source, source_bytes);
  thread.copies.push_back(copy);
}

void copy_async_commit() {
  ++machine->threads[machine->current].copy_group;
}

void copy_async_wait(unsigned groups_left) {
  Machine& m = *machine;
  Thread& thread = m.threads[m.current];
  size_t landed = 0;
  while (landed < thread.copies.size() && thread.copies[landed].group + groups_left < thread.copy_group) {
    land(m, thread.copies[landed++]);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<std::ptrdiff_t>(landed));
}

// Zero-filling copies may be left behind: kernels pad their last groups with them.
void end_copies(Thread& thread) {
  for (const AsyncCopy& copy : thread.copies) {
    if (copy.source_bytes > 0) {
      add_report(Fault::kAsyncCopy, {}, "the thread ends with a cp.async in flight");
      break;
    }
  }
  thread.copies.clear();
}

}  // namespace ashlar::emu
