// What the ranks of one communicator share: a piece of POSIX shared memory, mapped by every rank alike whether ranks
// are threads or processes. All of it is valid when it is zero, so nobody has to prepare it for the others.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ashlar::standin {

enum class NcclCall : int32_t { kNone, kAllReduce, kAllGather, kReduceScatter, kBroadcast, kSend, kReceive };
const char* call_name(NcclCall call);  // "ncclAllReduce", ...

// What the members of an operation must agree on.
struct NcclOp {
  NcclCall call = NcclCall::kNone;
  int32_t type = 0;     // ncclDataType_t
  int32_t reduce = 0;   // ncclRedOp_t
  int32_t root = 0;     // of a broadcast; the peer of a message
  uint64_t count = 0;   // as the caller gives it
  uint64_t number = 0;  // on this rank and communicator: of collectives, or of messages to or from this peer

  std::string text() const;  // "ncclAllReduce #3 of 16 ncclFloat32"
};

// One rank as the others see it.
struct RankCell {
  std::atomic<int32_t> pid;
  std::atomic<int32_t> device;     // index + 1
  std::atomic<int32_t> joined;     // 1: has come to the start; 2: has seen all others there
  std::atomic<int32_t> connects;   // 1: has started its first operation
  std::atomic<int32_t> aborted;    // 1: its ncclCommAbort was called
  std::atomic<int32_t> finalized;  // 1: will start nothing more
  std::atomic<int32_t> left;       // 1: has seen that all others are finalized
  std::atomic<uint64_t> splits;    // number of the split that `color` and `key` are for
  std::atomic<uint64_t> read_splits;
  int32_t color;
  int32_t key;
  std::atomic<uint64_t> collective;  // number of the collective that `op` describes
  NcclOp op;
  std::atomic<uint64_t> filled;  // the last piece that lies in this rank's slot
  std::atomic<uint64_t> read;    // the last piece that this rank has read of all others
};

// Messages of one rank to one other.
struct Mailbox {
  std::atomic<uint64_t> offered;   // number of the message that `sent` describes
  std::atomic<uint64_t> accepted;  // number of the message that `wanted` describes
  NcclOp sent;
  NcclOp wanted;
  std::atomic<uint64_t> written;  // pieces, over all messages
  std::atomic<uint64_t> taken;
};

struct RegionHead {
  std::atomic<uint32_t> changes;  // ranks sleep on it
  std::atomic<int32_t> num_ranks;
  std::atomic<int32_t> num_attached;
  std::atomic<int32_t> error;  // ncclResult_t of the communicator
  std::atomic<int32_t> error_written;
  char error_text[1024];
};

class Region {
 public:
  static constexpr size_t kSlotBytes = size_t{64} << 10;
  static constexpr size_t kMailBytes = size_t{32} << 10;

  // The last rank that attaches takes the name away, so that nothing is left behind however the ranks end.
  Region(const std::string& name, int num_ranks);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  int num_ranks() const { return num_ranks_; }
  RegionHead& head() { return *reinterpret_cast<RegionHead*>(memory_); }
  RankCell& cell(int rank);
  Mailbox& mailbox(int from, int to);
  std::byte* slot(int rank);
  std::byte* mail(int from, int to);

  // A wait is: look at changes(), then at what is waited for, then wait_for_change() with what was seen first.
  uint32_t changes() { return head().changes.load(); }
  void changed();                       // wakes all that wait
  void wait_for_change(uint32_t seen);  // Blocks the host; 20 ms at most, so that callers can look at their deadlines.

  // The first error of the communicator stays.
  void fail(ncclResult_t error, const std::string& text);

 private:
  int num_ranks_;
  std::string name_;
  size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
};

// Takes away what processes that were killed during their start have left in /dev/shm.
void remove_stale_regions();
std::string new_region_name();  // unique on this machine

}  // namespace ashlar::standin
