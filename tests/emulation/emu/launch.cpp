// A launch: blocks in random order, one after the other, each from its first thread to its last.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>

#include "tests/emulation/emu/kernel_words.h"
#include "tests/emulation/emu/machine.h"

namespace ashlar::emu {

thread_local const Lane* current_lane = nullptr;
thread_local Machine* machine = nullptr;

namespace {

thread_local Statistics statistics{};

// Machines are large (a gigabyte of address space for stacks is reserved, little of it touched), so a thread keeps its.
Machine& machine_of_this_thread() {
  thread_local const std::unique_ptr<Machine> mine = std::make_unique<Machine>();
  return *mine;
}

uint32_t next_launch() {
  static std::atomic<uint32_t> count{0};
  return ++count;
}

bool is_launchable(const Machine& m, dim3 grid, dim3 block, size_t dynamic_bytes) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  return threads >= 1 && threads <= kMaxThreads && block.z <= 64 && grid.x >= 1 && grid.x <= 0x7FFFFFFF &&
         grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 &&
         dynamic_bytes <= m.options.max_shared_bytes;
}

void report_touched(Machine& m) {
  if (hooks().touched == nullptr) {
    return;
  }
  for (const bool write : {false, true}) {
    TouchedRanges& ranges = write ? m.written : m.read;
    for (const TouchedRanges::Range& range : ranges.merged()) {
      hooks().touched(reinterpret_cast<const void*>(range.begin), range.end - range.begin, write);
    }
    ranges.clear();
  }
}

uint3 index_of(uint32_t linear, dim3 dims) {
  return {linear % dims.x, linear / dims.x % dims.y, linear / dims.x / dims.y};
}

}  // namespace

uint3 thread_index() {
  return current_lane->thread;
}
uint3 block_index() {
  return current_lane->block;
}
dim3 block_dimensions() {
  return current_lane->block_dim;
}
dim3 grid_dimensions() {
  return current_lane->grid_dim;
}

Hooks& hooks() {
  static Hooks instance;
  return instance;
}

void launch_on_stream(cudaStream_t stream, const char* name, std::function<void()> work) {
  if (hooks().enqueue != nullptr) {
    hooks().enqueue(stream, name, std::move(work));
  } else {
    work();
  }
}

Options& options() {
  static Options instance;
  return instance;
}

Statistics last_statistics() {
  return statistics;
}

Machine::Machine()
    : shared(static_cast<std::byte*>(std::aligned_alloc(1024, kSharedCapacity))), shared_end(kSharedCapacity) {
  if (shared == nullptr) {
    throw std::bad_alloc();
  }
  shared_bytes.resize(kSharedCapacity);
}

Machine::~Machine() {
  std::free(shared);
}

void run(dim3 grid, dim3 block, size_t dynamic_shared_bytes, const char* name, const Body& body) {
  Machine& m = machine_of_this_thread();
  m.options = options();
  m.kernel_name = name;
  if (m.kernel_name.starts_with('(') && m.kernel_name.ends_with(')')) {  // LAUNCH((kernel<1, 2>), ...)
    m.kernel_name = m.kernel_name.substr(1, m.kernel_name.size() - 2);
  }
  m.body = &body;
  m.statistics = {};
  if (!is_launchable(m, grid, block, dynamic_shared_bytes)) {
    add_report(Fault::kLaunch, {},
               fmt::format("{}: grid ({},{},{}), block ({},{},{}), {} bytes of dynamic shared memory", m.kernel_name,
                           grid.x, grid.y, grid.z, block.x, block.y, block.z, dynamic_shared_bytes));
    return;
  }
  machine = &m;
  m.launch = next_launch();
  m.aborted = false;
  m.num_threads = block.x * block.y * block.z;
  m.num_warps = (m.num_threads + 31) / 32;
  m.random_state = m.options.seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  std::vector<uint32_t> order(size_t{grid.x} * grid.y * grid.z);
  std::iota(order.begin(), order.end(), 0u);
  if (m.options.random_order) {
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random_number(m) % i]);
    }
  }
  for (const uint32_t index : order) {
    m.block = index;
    m.accesses_left = m.options.max_block_accesses;
    for (unsigned t = 0; t < m.num_threads; ++t) {
      m.lanes[t] = {index_of(t, block), index_of(index, grid), block, grid, t % 32, t};
    }
    reset_shared(m, dynamic_shared_bytes);
    start_block(m);
    ++m.statistics.blocks;
    if (m.aborted) {
      break;
    }
  }
  statistics = m.statistics;
  report_touched(m);
  machine = nullptr;
}

}  // namespace ashlar::emu
