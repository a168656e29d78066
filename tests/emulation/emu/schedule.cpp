// Which thread runs next, and the places where threads wait for each other: barriers and warp operations. A thread
// runs until it waits; then a ready lane of the same warp goes on (now and then of another, so that warps drift apart).
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tests/emulation/emu/machine.h"

namespace ashlar::emu {
namespace {

uint32_t bit(unsigned lane) {
  return 1u << lane;
}

void switch_to(Machine& m, unsigned thread) {
  const unsigned from = m.current;
  m.current = thread;
  current_lane = &m.lanes[thread];
  ++m.statistics.switches;
  if (from != thread) {
    ashlar_emu_switch(&m.threads[from].stack_pointer, m.threads[thread].stack_pointer);
  }
}

// One of the bits of mask, at random or the lowest.
unsigned pick(Machine& m, uint32_t mask) {
  if (!m.options.random_order) {
    return static_cast<unsigned>(std::countr_zero(mask));
  }
  const int turn = static_cast<int>(random_number(m) & 31);
  return static_cast<unsigned>(std::countr_zero(std::rotr(mask, turn)) + turn) & 31;
}

void make_ready(Machine& m, unsigned warp, uint32_t lanes) {
  m.warps[warp].ready |= lanes;
  if (m.warps[warp].ready != 0) {
    m.ready_warps |= bit(warp);
  }
}

void make_unready(Machine& m, unsigned warp, unsigned lane) {
  m.warps[warp].ready &= ~bit(lane);
  if (m.warps[warp].ready == 0) {
    m.ready_warps &= ~bit(warp);
  }
}

[[noreturn]] void report_deadlock(Machine& m) {
  std::string text;
  if (m.num_arrived > 0) {
    text = fmt::format("{} of {} live threads (of {}) wait in __syncthreads at {}:{}", m.num_arrived, m.num_live,
                       m.num_threads, m.barrier_site.file, m.barrier_site.line);
  }
  int shown = 0;
  for (unsigned w = 0; w < m.num_warps; ++w) {
    for (int i = 0; i < m.warps[w].num_meetings && shown < 3; ++i, ++shown) {
      const Meeting& meeting = m.warps[w].meetings[i];
      text += fmt::format("{}warp {}: lanes {:08x} of mask {:08x} wait in {} at {}:{}", text.empty() ? "" : "; ", w,
                          meeting.arrived, meeting.mask, meeting.what, meeting.site.file, meeting.site.line);
    }
  }
  add_report(Fault::kDeadlock, {nullptr, m.barrier_site}, text);
  abort_launch();
}

// The current thread waits or has ended: go on with one that is ready.
void run_another(Machine& m) {
  unsigned warp = m.current / 32;
  if (m.warps[warp].ready == 0 || (m.options.random_order && random_number(m) % 64 == 0)) {
    if (m.ready_warps == 0) {
      report_deadlock(m);
    }
    warp = pick(m, m.ready_warps);
  }
  const unsigned lane = pick(m, m.warps[warp].ready);
  make_unready(m, warp, lane);
  switch_to(m, warp * 32 + lane);
}

void release_barrier(Machine& m) {
  m.barrier_result = m.barrier_sum;
  m.num_arrived = 0;
  ++m.epoch;
  m.barrier_site = {};
  for (unsigned w = 0; w < m.num_warps; ++w) {
    make_ready(m, w, m.warps[w].live);
  }
}

// All lanes of mask now know what each of them knew, and everything that each of them did.
void join_times(Warp& warp, uint32_t mask) {
  ++warp.time;
  uint32_t joined[32] = {};
  for (unsigned t = 0; t < 32; ++t) {
    if ((mask & bit(t)) != 0) {
      for (unsigned u = 0; u < 32; ++u) {
        joined[u] = std::max(joined[u], warp.known[t][u]);
      }
    }
  }
  for (unsigned u = 0; u < 32; ++u) {
    if ((mask & bit(u)) != 0) {
      joined[u] = warp.time;
    }
  }
  for (unsigned t = 0; t < 32; ++t) {
    if ((mask & bit(t)) != 0) {
      std::copy(joined, joined + 32, warp.known[t]);
    }
  }
}

[[noreturn]] void diverged(const Site& site, const std::string& text) {
  add_report(Fault::kDivergence, {nullptr, site}, text);
  abort_launch();
}

// The meeting of exactly these lanes, opened when the caller is the first to come.
Meeting& meeting_of(Warp& warp, uint32_t mask, WarpOperation operation, const char* what, Site site) {
  for (int i = 0; i < warp.num_meetings; ++i) {
    Meeting& other = warp.meetings[i];
    if (other.mask == mask) {
      if (other.operation != operation || other.site.line != site.line || other.what != what) {
        diverged(site, fmt::format("{} here, but lanes {:08x} are in {} at line {}", what, other.arrived, other.what,
                                   other.site.line));
      }
      return other;
    }
    if ((other.mask & mask) != 0) {
      diverged(site, fmt::format("{} with mask {:08x}, but lanes {:08x} wait in {} with mask {:08x} at line {}", what,
                                 mask, other.arrived, other.what, other.mask, other.site.line));
    }
  }
  if ((mask & ~warp.live) != 0) {
    diverged(site, fmt::format("{}: mask {:08x} names lanes that have ended (live: {:08x})", what, mask, warp.live));
  }
  Meeting& opened = warp.meetings[warp.num_meetings++];
  opened = Meeting{mask, 0, operation, what, site};
  return opened;
}

// The first function on every fiber's stack.
void thread_main() {
  Machine& m = *machine;
  m.body->call(m.body->arguments);
  end_copies(m.threads[m.current]);
  --m.num_live;
  m.warps[m.current / 32].live &= ~bit(m.current % 32);
  if (m.num_live == 0) {
    void* ended = nullptr;
    ashlar_emu_switch(&ended, m.host_stack_pointer);
  }
  if (m.num_arrived > 0 && m.num_arrived == m.num_live) {
    add_report(
        Fault::kDivergence, {nullptr, m.barrier_site},
        fmt::format("__syncthreads is never reached by {} threads, which have ended", m.num_threads - m.num_live));
    release_barrier(m);
  }
  run_another(m);
  __builtin_unreachable();
}

}  // namespace

// xorshift64 (Marsaglia 2003); the high bits are the better ones.
uint32_t random_number(Machine& m) {
  uint64_t x = m.random_state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  m.random_state = x;
  return static_cast<uint32_t>(x >> 20);
}

void start_block(Machine& m) {
  m.num_live = m.num_threads;
  m.num_arrived = 0;
  m.barrier_site = {};
  m.epoch = 1;
  m.ready_warps = 0;
  for (unsigned t = 0; t < m.num_threads; ++t) {
    m.threads[t].stack_pointer = m.stacks.prepare(t, thread_main);
    m.threads[t].copy_group = 0;
    m.threads[t].copies.clear();
  }
  for (unsigned w = 0; w < m.num_warps; ++w) {
    Warp& warp = m.warps[w];
    const unsigned left = m.num_threads - w * 32;
    warp.live = left >= 32 ? ~0u : bit(left) - 1;
    warp.ready = 0;
    warp.num_meetings = 0;
    warp.time = 1;
    std::fill_n(&warp.known[0][0], 32 * 32, 0u);
    make_ready(m, w, warp.live);
  }
  const unsigned warp = pick(m, m.ready_warps);
  const unsigned lane = pick(m, m.warps[warp].ready);
  make_unready(m, warp, lane);
  m.current = warp * 32 + lane;
  current_lane = &m.lanes[m.current];
  ashlar_emu_switch(&m.host_stack_pointer, m.threads[m.current].stack_pointer);
  current_lane = nullptr;
}

[[noreturn]] void abort_launch() {
  machine->aborted = true;
  void* left_behind = nullptr;
  ashlar_emu_switch(&left_behind, machine->host_stack_pointer);
  __builtin_unreachable();
}

int block_barrier(BarrierKind kind, int predicate, Site site) {
  Machine& m = *machine;
  const int vote = predicate != 0 ? 1 : 0;
  if (m.num_arrived == 0) {
    m.barrier_site = site;
    m.barrier_kind = kind;
    m.barrier_sum = kind == BarrierKind::kAnd ? 1 : 0;
  } else if (m.barrier_site.file != site.file || m.barrier_site.line != site.line || m.barrier_kind != kind) {
    add_report(Fault::kDivergence, {nullptr, site},
               fmt::format("two different __syncthreads: {} threads wait at {}:{}, this one came here", m.num_arrived,
                           m.barrier_site.file, m.barrier_site.line));
  }
  switch (kind) {
    case BarrierKind::kAnd:
      m.barrier_sum &= vote;
      break;
    case BarrierKind::kCount:
      m.barrier_sum += vote;
      break;
    case BarrierKind::kPlain:
    case BarrierKind::kOr:
      m.barrier_sum |= vote;
      break;
  }
  if (++m.num_arrived < m.num_live) {
    run_another(m);
    return m.barrier_result;
  }
  if (m.num_live != m.num_threads) {
    add_report(
        Fault::kDivergence, {nullptr, site},
        fmt::format("__syncthreads after {} of {} threads have ended", m.num_threads - m.num_live, m.num_threads));
  }
  const unsigned self = m.current;
  release_barrier(m);
  if (m.options.random_order) {
    run_another(m);  // the last to come need not be the first to go on
  } else {
    make_unready(m, self / 32, self % 32);
  }
  return m.barrier_result;
}

void warp_operation(WarpOperation operation, uint32_t mask, void* slot, const char* what, Site site) {
  Machine& m = *machine;
  const unsigned lane = m.current % 32;
  const unsigned warp_index = m.current / 32;
  Warp& warp = m.warps[warp_index];
  ++m.statistics.warp_operations;
  if (warp_index == m.num_warps - 1 && m.num_threads % 32 != 0) {
    mask &= bit(m.num_threads % 32) - 1;  // lanes that never were are in every full mask
  }
  if ((mask & bit(lane)) == 0) {
    diverged(site, fmt::format("{}: the calling lane is not in its mask {:08x}", what, mask));
  }
  warp.slots[lane] = slot;
  Meeting& meeting = meeting_of(warp, mask, operation, what, site);
  meeting.arrived |= bit(lane);
  if (meeting.arrived != mask) {
    run_another(m);
    return;
  }
  meeting = warp.meetings[--warp.num_meetings];
  if (operation != nullptr) {
    m.operation_site = site;
    operation(warp.slots, mask);
  } else {
    join_times(warp, mask);
  }
  make_ready(m, warp_index, mask & ~bit(lane));
}

void sync_warp(uint32_t mask, Site site) {
  warp_operation(nullptr, mask, nullptr, "__syncwarp", site);
}

}  // namespace ashlar::emu
