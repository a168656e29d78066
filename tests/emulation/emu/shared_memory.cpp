// Shared memory and its shadow: every byte knows whether it was declared, written, is the target of a cp.async, and who
// last wrote and read it. Races are found by happens-before, not by luck of the order: two accesses of a byte, one of
// them a write, must have a __syncthreads between them, or within a warp a chain of __syncwarps.
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "tests/emulation/emu/machine.h"

namespace ashlar::emu {
namespace {

// Shared addresses as 32-bit numbers start here, so that 0 is not one.
constexpr uint32_t kAddressBase = 1024;

void declare(Machine& m, size_t offset, size_t bytes) {
  for (size_t i = offset; i < offset + bytes; ++i) {
    m.shared_bytes[i] = SharedByte{};
    m.shared_bytes[i].flags = SharedByte::kDeclared;
  }
}

void report_race(const char* kind, size_t offset, unsigned other, const Place& place) {
  add_report(Fault::kSharedRace, place,
             fmt::format("{} of shared byte {} with thread {}, and no barrier between", kind, offset, other));
}

// Faults of a byte that is not simply declared and initialised.
void check_state(Machine& m, SharedByte& byte, size_t offset, bool write, const Place& place) {
  if ((byte.flags & SharedByte::kDeclared) == 0) {
    add_report(Fault::kSharedBounds, place,
               fmt::format("{} at offset {} of dynamic shared memory of {} bytes, outside of every declared array",
                           write ? "write" : "read",
                           static_cast<int64_t>(offset) - static_cast<int64_t>(kDynamicOffset), m.dynamic_bytes));
    abort_launch();
  }
  if ((byte.flags & SharedByte::kInFlight) != 0) {
    add_report(Fault::kAsyncCopy, place,
               fmt::format("{} shared byte {} while a cp.async of thread {} to it is in flight",
                           write ? "writing" : "reading", offset, byte.writer));
    byte.flags &= ~SharedByte::kInFlight & 7;
  } else if (!write && (byte.flags & SharedByte::kInitialised) == 0) {
    add_report(Fault::kUninitialised, place, fmt::format("reading shared byte {} before any write", offset));
    byte.flags |= SharedByte::kInitialised;
  }
}

// Reports a write while a lane that read the byte may still be reading.
void check_readers(Machine& m, const SharedByte& byte, size_t offset, unsigned warp, uint32_t lanes,
                   const Place& place) {
  if (byte.read_epoch != m.epoch) {
    return;
  }
  for (uint32_t left = byte.read_lanes; left != 0; left &= left - 1) {
    const unsigned other = byte.read_warp * 32 + static_cast<unsigned>(std::countr_zero(left));
    if (byte.many_warps || is_concurrent(m, warp, lanes, other, byte.read_epoch, byte.read_time)) {
      report_race("write after read", offset, other, place);
      return;
    }
  }
}

// Remembers the reads that no later one stands for: a read that happened before the new one is covered by it.
void add_readers(Machine& m, SharedByte& byte, unsigned warp, uint32_t lanes) {
  const uint32_t now = m.warps[warp].time;
  uint32_t kept = 0;
  if (byte.read_epoch == m.epoch) {
    if (byte.many_warps) {
      return;
    }
    if (byte.read_warp != warp) {
      byte.many_warps = 1;
      return;
    }
    kept = byte.read_lanes;
    if (byte.read_time != now) {
      for (uint32_t left = kept; left != 0; left &= left - 1) {
        const auto lane = static_cast<unsigned>(std::countr_zero(left));
        if (!is_concurrent(m, warp, lanes, warp * 32 + lane, byte.read_epoch, byte.read_time)) {
          kept &= ~(1u << lane);
        }
      }
    }
  }
  byte.read_epoch = m.epoch;
  byte.read_time = now;
  byte.read_warp = static_cast<uint8_t>(warp);
  byte.read_lanes = kept | lanes;
  byte.many_warps = 0;
}

}  // namespace

bool is_concurrent(const Machine& m, unsigned warp, uint32_t lanes, unsigned other, uint32_t epoch, uint32_t time) {
  if (epoch != m.epoch) {
    return false;
  }
  if (other / 32 != warp) {
    return true;
  }
  const unsigned other_lane = other % 32;
  for (uint32_t left = lanes & ~(1u << other_lane); left != 0; left &= left - 1) {
    if (time >= m.warps[warp].known[std::countr_zero(left)][other_lane]) {
      return true;
    }
  }
  return false;
}

void shared_access(Machine& m, size_t offset, size_t bytes, bool write, unsigned warp, uint32_t lanes,
                   const Place& place) {
  ++m.statistics.shared_accesses;
  if (!m.options.check) {
    return;
  }
  if (offset + bytes > kSharedCapacity) {
    add_report(Fault::kSharedBounds, place, "far outside of shared memory");
    abort_launch();
  }
  const auto self = static_cast<uint16_t>(warp * 32 + static_cast<unsigned>(std::countr_zero(lanes)));
  for (size_t i = offset; i < offset + bytes; ++i) {
    SharedByte& byte = m.shared_bytes[i];
    if (byte.flags != (SharedByte::kDeclared | SharedByte::kInitialised)) {
      check_state(m, byte, i, write, place);
    }
    if (byte.write_epoch == m.epoch && (byte.writer != self || std::popcount(lanes) > 1) &&
        is_concurrent(m, warp, lanes, byte.writer, byte.write_epoch, byte.write_time)) {
      report_race(write ? "write after write" : "read after write", i, byte.writer, place);
      byte.write_epoch = 0;
    }
    if (!write) {
      add_readers(m, byte, warp, lanes);
      continue;
    }
    check_readers(m, byte, i, warp, lanes, place);
    byte.write_epoch = m.epoch;
    byte.write_time = m.warps[warp].time;
    byte.writer = self;
    byte.read_epoch = 0;
    byte.flags |= SharedByte::kInitialised;
  }
}

// Every block starts with shared memory full of NaN and without history.
void reset_shared(Machine& m, size_t dynamic_bytes) {
  const size_t used = std::min(m.shared_end + kRedZone, kSharedCapacity);
  std::memset(m.shared, 0xFF, used);
  std::fill_n(m.shared_bytes.begin(), used, SharedByte{});
  m.static_arrays.clear();
  m.static_bytes = 0;
  m.dynamic_bytes = dynamic_bytes;
  m.shared_end = kDynamicOffset + dynamic_bytes;
  declare(m, kDynamicOffset, dynamic_bytes);
}

void* static_shared(const void* tag, size_t bytes) {
  Machine& m = *machine;
  for (const auto& [known_tag, array] : m.static_arrays) {
    if (known_tag == tag) {
      return array;
    }
  }
  m.static_bytes += bytes;
  const size_t offset = (m.shared_end + kRedZone + 15) / 16 * 16;
  if (m.static_bytes > 48 * 1024 || m.static_bytes + m.dynamic_bytes > m.options.max_shared_bytes) {
    add_report(Fault::kLaunch, {},
               fmt::format("{} bytes of declared and {} of dynamic shared memory are more than a block may have",
                           m.static_bytes, m.dynamic_bytes));
    abort_launch();
  }
  declare(m, offset, bytes);
  m.shared_end = offset + bytes;
  m.static_arrays.emplace_back(tag, m.shared + offset);
  return m.shared + offset;
}

unsigned char* dynamic_shared() {
  return reinterpret_cast<unsigned char*>(machine->shared + kDynamicOffset);
}

uint32_t shared_address(const void* pointer) {
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(pointer) - machine->shared);
  if (offset > kSharedCapacity) {
    add_report(Fault::kSharedBounds, {}, "the shared address of a pointer that is not into shared memory");
    abort_launch();
  }
  return static_cast<uint32_t>(offset) + kAddressBase;
}

void* shared_pointer(uint32_t address) {
  if (address < kAddressBase || address - kAddressBase > kSharedCapacity) {
    add_report(Fault::kSharedBounds, {nullptr, machine->operation_site}, fmt::format("shared address {}", address));
    abort_launch();
  }
  return machine->shared + (address - kAddressBase);
}

}  // namespace ashlar::emu
