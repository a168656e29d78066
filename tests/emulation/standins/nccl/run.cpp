// What operations do when their stream comes to them: they say what memory they touch, meet the other ranks, and move
// pieces through the shared region.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/emulation/standins/cudart/state.h"
#include "tests/emulation/standins/nccl/comm.h"

namespace ashlar::standin {
namespace {

using SteadyClock = std::chrono::steady_clock;

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

double timeout_seconds() {
  return nccl_config().timeout_seconds > 0 ? nccl_config().timeout_seconds : 120;
}

bool is_dead(const RankCell& cell) {
  const int pid = cell.pid.load();
  return pid > 0 && pid != getpid() && kill(pid, 0) != 0 && errno == ESRCH;
}

// Why a rank that is waited for will never come; empty when it may.
std::string gone(const RankCell& cell) {
  if (is_dead(cell)) {
    return "whose process is gone";
  }
  if (cell.aborted.load() != 0) {
    return "which has called ncclCommAbort";
  }
  return cell.finalized.load() != 0 ? "which has called ncclCommFinalize" : "";
}

// A kernel of the real one spins until its communicator is aborted.
void spin_until_aborted(ncclComm& comm) {
  const auto end = SteadyClock::now() + std::chrono::duration<double>(timeout_seconds());
  while (!comm.aborted && SteadyClock::now() < end) {
    const uint32_t seen = comm.region->changes();
    if (!comm.aborted) {
      comm.region->wait_for_change(seen);
    }
  }
}

void move_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) {
    const Lock lock(state().data);
    std::memcpy(to, from, bytes);
  }
}

// Piece number `comm.num_pieces` of every rank lies in its slot while `use` runs. Ranks with nothing to say take part.
template <typename Use>
bool round(ncclComm& comm, const NcclOp& op, const std::byte* mine, size_t bytes, Use use) {
  Region& region = *comm.region;
  const uint64_t piece = ++comm.num_pieces;
  const auto behind = [&](std::atomic<uint64_t> RankCell::*count, uint64_t goal) {
    std::vector<int> ranks;
    for (int rank = 0; rank < comm.size; ++rank) {
      if ((region.cell(rank).*count).load() < goal) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  };
  const auto wait_all = [&](std::atomic<uint64_t> RankCell::*count, uint64_t goal) {
    const auto missing = [&] { return behind(count, goal); };
    return wait_for(
        comm, op.text(), [&] { return missing().empty(); }, missing);
  };
  if (!wait_all(&RankCell::read, piece - 1)) {
    return false;
  }
  move_bytes(region.slot(comm.rank), mine, bytes);
  comm.cell(comm.rank).filled.store(piece);
  region.changed();
  if (!wait_all(&RankCell::filled, piece)) {
    return false;
  }
  use();
  comm.cell(comm.rank).read.store(piece);
  region.changed();
  return true;
}

// Enters the collective and compares it with what the others have entered.
bool enter(ncclComm& comm, const NcclOp& op) {
  Region& region = *comm.region;
  RankCell& mine = region.cell(comm.rank);
  mine.op = op;
  mine.collective.store(op.number);
  region.changed();
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int rank = 0; rank < comm.size; ++rank) {
      if (region.cell(rank).collective.load() < op.number) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  };
  if (!wait_for(
          comm, op.text(), [&] { return missing().empty(); }, missing)) {
    return false;
  }
  for (int rank = 0; rank < comm.size; ++rank) {
    const NcclOp& theirs = region.cell(rank).op;
    if (theirs.call != op.call || theirs.type != op.type || theirs.count != op.count || theirs.reduce != op.reduce ||
        theirs.root != op.root) {
      fail_all(
          comm, ncclInvalidUsage,
          describe(comm) + " calls " + op.text() + ", but rank " + std::to_string(rank) + " calls " + theirs.text());
      return false;
    }
  }
  return true;
}

std::vector<const std::byte*> slots(ncclComm& comm) {
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < comm.size; ++rank) {
    sources.push_back(comm.region->slot(rank));
  }
  return sources;
}

// out [count] = reduction of the ranks' in [count]; only where `keep`.
bool reduce_pieces(ncclComm& comm, const NcclOp& op, std::byte* out, const std::byte* in, size_t count, bool keep) {
  const size_t width = type_bytes(op.type);
  const size_t step = Region::kSlotBytes / width;
  const std::vector<const std::byte*> sources = slots(comm);
  for (size_t begin = 0; begin < count; begin += step) {
    const size_t part = std::min(step, count - begin);
    const auto use = [&] {
      if (keep) {
        const Lock lock(state().data);
        reduce(out + begin * width, sources, part, op.type, op.reduce);
      }
    };
    if (!round(comm, op, in + begin * width, part * width, use)) {
      return false;
    }
  }
  return true;
}

struct Touched {
  size_t read = 0;
  size_t written = 0;
};

Touched touched_bytes(const ncclComm& comm, const NcclOp& op) {
  const size_t bytes = op.count * type_bytes(op.type);
  const size_t all = bytes * static_cast<size_t>(comm.size);
  switch (op.call) {
    case NcclCall::kAllReduce:
      return {bytes, bytes};
    case NcclCall::kAllGather:
      return {bytes, all};
    case NcclCall::kReduceScatter:
      return {all, bytes};
    case NcclCall::kBroadcast:
      return {op.root == comm.rank ? bytes : 0, bytes};
    case NcclCall::kSend:
      return {bytes, 0};
    case NcclCall::kReceive:
      return {0, bytes};
    case NcclCall::kNone:
      break;
  }
  return {};
}

bool touch_operands(ncclComm& comm, const QueuedOp& queued) {
  const Touched bytes = touched_bytes(comm, queued.op);
  return touch(queued.send, bytes.read, Access::kRead) && touch(queued.receive, bytes.written, Access::kWrite);
}

// One message under way on this rank.
struct Leg {
  const QueuedOp* queued = nullptr;
  bool met = false;  // the other side is there, and agrees
  size_t done = 0;   // bytes
  bool over = false;
};

bool agree_on(ncclComm& comm, const NcclOp& mine, const NcclOp& theirs) {
  if (mine.type == theirs.type && mine.count == theirs.count) {
    return true;
  }
  fail_all(
      comm, ncclInvalidUsage,
      describe(comm) + " calls " + mine.text() + ", but rank " + std::to_string(mine.root) + " calls " + theirs.text());
  return false;
}

// Moves one message on; false when nothing moved.
bool advance(ncclComm& comm, Leg& leg) {
  Region& region = *comm.region;
  const NcclOp& op = leg.queued->op;
  const bool sends = op.call == NcclCall::kSend;
  const int from = sends ? comm.rank : op.root;
  const int to = sends ? op.root : comm.rank;
  Mailbox& box = region.mailbox(from, to);
  const size_t bytes = op.count * type_bytes(op.type);
  bool moved = false;
  if (!leg.met) {
    if (sends && box.offered.load() + 1 == op.number) {
      box.sent = op;
      box.offered.store(op.number);
      moved = true;
    }
    if (!sends && box.offered.load() >= op.number) {
      if (!agree_on(comm, op, box.sent)) {
        return false;
      }
      box.wanted = op;
      box.accepted.store(op.number);
      leg.met = moved = true;
    } else if (sends && box.accepted.load() >= op.number) {
      leg.met = moved = true;
    }
  }
  while (leg.met && leg.done < bytes) {
    const size_t part = std::min(bytes - leg.done, Region::kMailBytes);
    if (sends && box.written.load() == box.taken.load()) {
      move_bytes(region.mail(from, to), static_cast<const std::byte*>(leg.queued->send) + leg.done, part);
      box.written.fetch_add(1);
    } else if (!sends && box.written.load() > box.taken.load()) {
      move_bytes(static_cast<std::byte*>(leg.queued->receive) + leg.done, region.mail(from, to), part);
      box.taken.fetch_add(1);
    } else {
      break;
    }
    leg.done += part;
    moved = true;
  }
  // A send is over when all of it was taken, as if nothing lay between.
  leg.over = leg.met && leg.done == bytes && (!sends || box.written.load() == box.taken.load());
  return moved || leg.over;
}

// Moves all messages on, those between the same two ranks one after the other. Returns what is not over yet.
std::vector<const NcclOp*> advance_all(ncclComm& comm, std::vector<Leg>& legs) {
  std::vector<const NcclOp*> open;
  bool moved = false;
  for (Leg& leg : legs) {
    const NcclOp& op = leg.queued->op;
    const bool behind_another = std::any_of(open.begin(), open.end(), [&](const NcclOp* earlier) {
      return earlier->call == op.call && earlier->root == op.root;
    });
    if (!leg.over && !behind_another) {
      moved = advance(comm, leg) || moved;
    }
    if (!leg.over) {
      open.push_back(&op);
    }
  }
  if (moved) {
    comm.region->changed();  // for the others, and for another look of this rank
  }
  return open;
}

}  // namespace

bool wait_for(ncclComm& comm, const std::string& what, const std::function<bool()>& ready, const Missing& missing) {
  const auto start = SteadyClock::now();
  auto next_look = start;
  while (true) {
    const uint32_t seen = comm.region->changes();
    if (comm.aborted || error_of(comm) != ncclSuccess) {
      return false;
    }
    if (ready()) {
      return true;
    }
    for (const int rank : missing()) {
      const RankCell& peer = comm.cell(rank);
      const std::string why = gone(peer);
      if (!why.empty() && !ready()) {
        fail_all(comm, peer.finalized.load() != 0 ? ncclInvalidUsage : ncclRemoteError,
                 describe(comm) + " waits in " + what + " for rank " + std::to_string(rank) + ", " + why);
      }
    }
    const auto now = SteadyClock::now();
    if (now > start + std::chrono::duration<double>(timeout_seconds())) {
      fail_all(comm, ncclSystemError, describe(comm) + " waited too long in " + what + " for " + rank_list(missing()));
    }
    if (now >= next_look) {
      demand_peers(comm);
      next_look = now + std::chrono::milliseconds(10);
    }
    comm.region->wait_for_change(seen);
  }
}

bool run_collective(ncclComm& comm, const QueuedOp& queued) {
  const NcclOp& op = queued.op;
  if (!enter(comm, op)) {
    return false;
  }
  const size_t width = type_bytes(op.type);
  const size_t bytes = op.count * width;
  const auto* in = static_cast<const std::byte*>(queued.send);
  auto* out = static_cast<std::byte*>(queued.receive);
  switch (op.call) {
    case NcclCall::kAllReduce:
      return reduce_pieces(comm, op, out, in, op.count, true);
    case NcclCall::kReduceScatter:
      for (int rank = 0; rank < comm.size; ++rank) {
        const std::byte* part = in + static_cast<size_t>(rank) * bytes;
        if (!reduce_pieces(comm, op, out, part, op.count, rank == comm.rank)) {
          return false;
        }
      }
      return true;
    case NcclCall::kAllGather:
      for (size_t begin = 0; begin < bytes; begin += Region::kSlotBytes) {
        const size_t part = std::min(Region::kSlotBytes, bytes - begin);
        const auto use = [&] {
          for (int rank = 0; rank < comm.size; ++rank) {
            move_bytes(out + static_cast<size_t>(rank) * bytes + begin, comm.region->slot(rank), part);
          }
        };
        if (!round(comm, op, in + begin, part, use)) {
          return false;
        }
      }
      return true;
    case NcclCall::kBroadcast:
      for (size_t begin = 0; begin < bytes; begin += Region::kSlotBytes) {
        const size_t part = std::min(Region::kSlotBytes, bytes - begin);
        const bool is_root = op.root == comm.rank;
        const auto use = [&] { move_bytes(out + begin, comm.region->slot(op.root), part); };
        if (!round(comm, op, is_root ? in + begin : nullptr, is_root ? part : 0, use)) {
          return false;
        }
      }
      return true;
    default:
      return false;
  }
}

bool run_messages(ncclComm& comm, const std::vector<QueuedOp>& queued) {
  std::vector<Leg> legs;
  for (const QueuedOp& one : queued) {
    legs.push_back({.queued = &one});
  }
  while (true) {
    const uint32_t seen = comm.region->changes();
    const std::vector<const NcclOp*> open = advance_all(comm, legs);
    if (open.empty()) {
      return true;
    }
    const auto changed = [&] { return comm.region->changes() != seen; };
    const auto peers = [&] {
      std::vector<int> ranks;
      for (const NcclOp* op : open) {
        ranks.push_back(op->root);
      }
      return ranks;
    };
    if (!wait_for(comm, open.front()->text(), changed, peers)) {
      return false;
    }
  }
}

void run_work(const std::shared_ptr<ncclComm>& comm, const std::vector<QueuedOp>& ops) {
  bool goes_on = true;
  for (const QueuedOp& queued : ops) {
    if (queued.broken && nccl_config().fault.fault == NcclFault::kAsyncError) {
      comm->own_error = ncclSystemError;
      const std::lock_guard lock(comm->text_mutex);
      comm->error_text = describe(*comm) + ": planted failure of " + queued.op.text();
    }
    goes_on = goes_on && !queued.broken && touch_operands(*comm, queued);
  }
  std::vector<QueuedOp> messages;
  for (const QueuedOp& queued : ops) {
    if (queued.op.call == NcclCall::kSend || queued.op.call == NcclCall::kReceive) {
      messages.push_back(queued);
    } else {
      goes_on = goes_on && run_collective(*comm, queued);
    }
  }
  goes_on = goes_on && run_messages(*comm, messages);
  if (!goes_on) {
    spin_until_aborted(*comm);
  }
  comm->num_finished.fetch_add(1);
  comm->region->changed();
}

}  // namespace ashlar::standin
