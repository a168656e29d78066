// Device memory and its shadow: one cell per two bytes (a bf16) with its last writer and reader; two threads that write
// neighbouring single bytes would be reported falsely, but no tensor has one-byte elements. Blocks of a launch run
// in no order, so a cell that one block writes may not be touched by another, unless both use atomics. Within a block
// the rules are those of shared memory. Cells are read and written without a lock, as other OS threads may run other
// kernels: a race between those belongs to whoever orders streams.
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "tests/emulation/emu/machine.h"

extern "C" {
extern char __executable_start;
extern char _end;
}

namespace ashlar::emu {

struct GlobalCell {
  std::atomic<uint64_t> writer;  // launch : 32 | atomic : 1 | block : 31
  std::atomic<uint64_t> write_moment;
  std::atomic<uint64_t> reader;  // launch : 32 | several blocks : 1 | block : 31
  std::atomic<uint64_t> read_moment;
};

namespace {

constexpr size_t kCellBytes = 2;
constexpr size_t kDeadBytes = 4096;
constexpr uint64_t kFlag = 1ull << 31;

// thread : 10 | epoch : 22 | time : 32
struct Moment {
  unsigned thread;
  uint32_t epoch, time;
};
uint64_t pack(const Moment& moment) {
  return static_cast<uint64_t>(moment.thread) << 54 | static_cast<uint64_t>(moment.epoch & 0x3FFFFF) << 32 |
         moment.time;
}
Moment unpack(uint64_t word) {
  return {static_cast<unsigned>(word >> 54), static_cast<uint32_t>(word >> 32 & 0x3FFFFF), static_cast<uint32_t>(word)};
}

struct Memory {
  std::shared_mutex mutex;
  std::map<uintptr_t, GlobalRange> ranges;  // by begin
  std::atomic<uint64_t> version{1};         // changes when a range goes or comes
};

Memory& memory() {
  static Memory instance;
  return instance;
}

bool find_range(uintptr_t address, GlobalRange& range) {
  Memory& all = memory();
  const std::shared_lock lock(all.mutex);
  auto after = all.ranges.upper_bound(address);
  if (after == all.ranges.begin()) {
    return false;
  }
  range = std::prev(after)->second;
  return address < range.end;
}

void report_race(const char* kind, const std::string& with, const Place& place) {
  add_report(Fault::kGlobalRace, place, fmt::format("{} {}", kind, with));
}

// Whether what another thread of this block did to a global cell may happen at the same time.
bool is_concurrent_in_block(const Machine& m, const Moment& other) {
  return other.thread != m.current &&
         is_concurrent(m, m.current / 32, 1u << m.current % 32, other.thread, other.epoch, other.time);
}

// Returns false after a report: the rest of the access is then skipped.
bool touch(Machine& m, GlobalCell& cell, AccessKind kind, const Place& place) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const bool is_atomic = kind == AccessKind::kAtomic;
  const uint64_t launch = static_cast<uint64_t>(m.launch) << 32;
  const Moment now{m.current, m.epoch, m.warps[m.current / 32].time};
  const uint64_t writer = cell.writer.load(kRelaxed);
  if (writer >> 32 == m.launch && !(is_atomic && (writer & kFlag) != 0)) {
    const auto block = static_cast<uint32_t>(writer & (kFlag - 1));
    const char* what = kind == AccessKind::kRead ? "reads" : "writes";
    if (block != m.block) {
      report_race(what, fmt::format("what block {} has written in this launch", block), place);
      return false;
    }
    const Moment other = unpack(cell.write_moment.load(kRelaxed));
    if (is_concurrent_in_block(m, other)) {
      report_race(what, fmt::format("what thread {} of this block has written, and no barrier between", other.thread),
                  place);
      return false;
    }
  }
  const uint64_t reader = cell.reader.load(kRelaxed);
  const bool was_read = reader >> 32 == m.launch;
  const auto reader_block = static_cast<uint32_t>(reader & (kFlag - 1));
  if (kind == AccessKind::kRead) {
    const bool several = was_read && ((reader & kFlag) != 0 || reader_block != m.block);
    cell.reader.store(launch | (several ? kFlag : 0) | m.block, kRelaxed);
    cell.read_moment.store(pack(now), kRelaxed);
    return true;
  }
  if (was_read && ((reader & kFlag) != 0 || reader_block != m.block)) {
    report_race("writes", fmt::format("what another block reads in this launch (block {})", reader_block), place);
    return false;
  }
  const Moment other = unpack(cell.read_moment.load(kRelaxed));
  if (was_read && is_concurrent_in_block(m, other)) {
    report_race("writes", fmt::format("what thread {} of this block has read, and no barrier between", other.thread),
                place);
    return false;
  }
  cell.writer.store(launch | (is_atomic ? kFlag : 0) | m.block, kRelaxed);
  cell.write_moment.store(pack(now), kRelaxed);
  return true;
}

bool is_program_constant(uintptr_t address, size_t bytes) {
  return address >= reinterpret_cast<uintptr_t>(&__executable_start) &&
         address + bytes <= reinterpret_cast<uintptr_t>(&_end);
}

}  // namespace

void* allocate(size_t bytes) {
  const size_t total = (bytes + 255) / 256 * 256 + 2 * kDeadBytes;
  auto* whole = static_cast<std::byte*>(std::aligned_alloc(256, total));
  auto* cells = static_cast<GlobalCell*>(std::calloc(bytes / kCellBytes + 1, sizeof(GlobalCell)));
  if (whole == nullptr || cells == nullptr) {
    std::free(whole);
    std::free(cells);
    return nullptr;
  }
  std::memset(whole, 0xFF, total);
  std::byte* data = whole + kDeadBytes;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  Memory& all = memory();
  const std::unique_lock lock(all.mutex);
  all.ranges[begin] = {begin, begin + bytes, cells};
  ++all.version;
  return data;
}

void release(void* data) {
  Memory& all = memory();
  const std::unique_lock lock(all.mutex);
  const auto found = all.ranges.find(reinterpret_cast<uintptr_t>(data));
  if (found == all.ranges.end()) {
    return;
  }
  std::free(found->second.cells);
  all.ranges.erase(found);
  ++all.version;
  std::free(static_cast<std::byte*>(data) - kDeadBytes);
}

bool is_allocated(const void* data, size_t bytes) {
  GlobalRange range;
  const auto address = reinterpret_cast<uintptr_t>(data);
  return find_range(address, range) && address + bytes <= range.end;
}

bool global_access(Machine& m, uintptr_t address, size_t bytes, AccessKind kind, const Place& place) {
  ++m.statistics.global_accesses;
  if (!m.options.check) {
    return true;
  }
  if (const uint64_t version = memory().version; m.ranges_version != version) {
    m.ranges_version = version;
    std::fill(std::begin(m.recent), std::end(m.recent), GlobalRange{});
  }
  const GlobalRange* range = nullptr;
  for (const GlobalRange& candidate : m.recent) {
    if (address >= candidate.begin && address < candidate.end) {
      range = &candidate;
    }
  }
  if (range == nullptr) {
    GlobalRange found;
    if (!find_range(address, found)) {
      return kind == AccessKind::kRead && is_program_constant(address, bytes);
    }
    GlobalRange& kept = m.recent[m.next_recent++ % std::size(m.recent)];
    kept = found;
    range = &kept;
  }
  if (address + bytes > range->end) {
    return false;
  }
  if (hooks().touched != nullptr) {
    (kind == AccessKind::kRead ? m.read : m.written).add(address, bytes);
  }
  const size_t first = (address - range->begin) / kCellBytes;
  const size_t last = (address - range->begin + bytes - 1) / kCellBytes;
  for (size_t i = first; i <= last && touch(m, range->cells[i], kind, place); ++i) {
  }
  return true;
}

}  // namespace ashlar::emu
