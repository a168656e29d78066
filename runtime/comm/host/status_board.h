// What every rank of a job tells the others without being asked: where it stands, what it finished last, and that the
// job is over. A plain region of atomics, in the heap for thread ranks and in a shared window for processes, so a rank
// that waits can describe a rank that sleeps.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "runtime/base/error.h"
#include "runtime/comm/op_info.h"

namespace ashlar {

// Text that one rank writes while others read. A reader may see half of a new text, never a race.
template <size_t kBytes>
class SharedText {
 public:
  void store(const char* text) {
    const size_t length = std::min(std::strlen(text), kBytes - 1);
    for (size_t word = 0; word < words_.size(); ++word) {
      uint64_t packed = 0;
      if (word * 8 < length) {
        std::memcpy(&packed, text + word * 8, std::min<size_t>(8, length - word * 8));
      }
      words_[word].store(packed, std::memory_order_relaxed);
    }
  }
  std::string load() const {
    std::array<char, kBytes> text;
    for (size_t word = 0; word < words_.size(); ++word) {
      const uint64_t packed = words_[word].load(std::memory_order_relaxed);
      std::memcpy(text.data() + word * 8, &packed, 8);
    }
    text.back() = '\0';
    return text.data();
  }

 private:
  static_assert(kBytes % 8 == 0);
  std::array<std::atomic<uint64_t>, kBytes / 8> words_{};
};

// Kind and number of an operation in one atomic word.
class SharedOp {
 public:
  struct Value {
    OpKind kind = OpKind::kNone;
    uint64_t number = 0;
    std::string text() const;  // "all_reduce #12" or "none"
  };
  void store(Value value) {
    word_.store(static_cast<uint64_t>(value.kind) << 56 | value.number, std::memory_order_relaxed);
  }
  Value load() const {
    const uint64_t word = word_.load(std::memory_order_relaxed);
    return {static_cast<OpKind>(word >> 56), word & ((uint64_t{1} << 56) - 1)};
  }

 private:
  std::atomic<uint64_t> word_{0};
};

// An operation that a rank has started: enough for the others to see that theirs of the same number is another one.
class SharedIssue {
 public:
  void store(const OpInfo& op);
  std::optional<OpInfo> load(uint64_t number) const;  // empty: another number is there
  static OpInfo shown(const OpInfo& op);              // what others read of it: very large numbers are cut

 private:
  std::atomic<uint64_t> number_{0};
  std::atomic<uint64_t> packed_{0};
};

struct GroupStatus {
  static constexpr uint64_t kNumIssues = 64;

  std::atomic<uint64_t> group_id{0};  // 0: free
  std::atomic<bool> asynchronous{false};
  SharedText<32> name;
  SharedOp current;      // the operation in which the host waits
  SharedOp last_issued;  // of an asynchronous group: the device has come to some operation up to this one
  SharedOp last_finished;
  std::array<SharedIssue, kNumIssues> issues;  // the last ones, by number

  // Of an asynchronous group: operations that were started and are not finished.
  bool under_way() const { return asynchronous.load() && last_issued.load().number > last_finished.load().number; }
};

struct RankStatus {
  static constexpr size_t kMaxGroups = 64;

  std::atomic<bool> present{false};  // false: the rank is on another host
  std::atomic<int32_t> pid{0};       // of a rank that is a process of its own
  std::atomic<bool> left{false};     // has said its last word
  std::atomic<int64_t> step{-1};
  std::atomic<int32_t> microbatch{-1};
  SharedText<16> action;
  SharedText<48> coordinate;
  std::array<GroupStatus, kMaxGroups> groups;
};

// A view of the region; the region outlives it.
class StatusBoard {
 public:
  static size_t region_bytes(int num_ranks);

  // `initialize` on exactly one rank, before the others use it.
  StatusBoard(std::byte* region, int num_ranks, bool initialize);

  int num_ranks() const { return num_ranks_; }
  RankStatus& mine(int world_rank) { return ranks_[world_rank]; }
  const RankStatus& of(int world_rank) const { return ranks_[world_rank]; }

  // The first caller's reason ends the job; later ones are dropped.
  // Returns whether this call ended it; false: another rank was first, and its reason is there.
  bool end_job(int world_rank, ErrorCode code, const std::string& reason);
  bool job_ended() const;
  int ended_by() const;  // world rank
  // World rank of a process that died without a word; -1 when all live. A few system calls.
  int find_dead() const;
  ErrorCode end_code() const;
  std::string end_reason() const;

  // "rank 3 (t1 p0 d1): step 7, action 1F2, micro-batch 2; waits in all_reduce #12 of "tensor""
  std::string stand(int world_rank) const;
  // Whether a rank of this host is in no operation of any group: it computes, sleeps, or reads a file.
  bool computes(int world_rank) const;
  std::string last_finished(int world_rank, uint64_t group_id) const;
  // The group as that rank keeps it; nullptr when it has none of this number (any more).
  const GroupStatus* find_group(int world_rank, uint64_t group_id) const;
  std::string table() const;  // one line a rank

 private:
  struct JobEnd;

  JobEnd* end_;
  RankStatus* ranks_;
  int num_ranks_;
};

}  // namespace ashlar
