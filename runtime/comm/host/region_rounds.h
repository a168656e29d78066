// Rounds through memory that all members see: a line of atomics and two staging buffers for each member.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/comm/host/host_rank.h"
#include "runtime/comm/host/report.h"
#include "runtime/comm/host/rounds.h"

namespace ashlar {

// The members' blocks, in group order. Threads take them from the heap, processes from a shared window.
struct SharedRegion {
  std::shared_ptr<void> owner;
  std::vector<std::byte*> blocks;
};

class RegionRounds final : public Rounds {
 public:
  // Two buffers of 256 KiB a member: both stay in the L2 cache, and 8 ranks with 6 groups each need 24 MB of the 64 MB
  // that containers usually have in /dev/shm.
  static constexpr size_t kBufferBytes = size_t{256} << 10;
  static size_t block_bytes(size_t buffer_bytes);
  // Each member's block once, before anybody uses the region.
  static void initialize_block(std::byte* block);

  RegionRounds(HostRank& rank, GroupInfo group, SharedRegion region, size_t buffer_bytes);

  size_t piece_capacity() const override { return stride_; }
  size_t common_capacity() const override { return buffer_bytes_; }
  void begin(const OpInfo& op) override;
  void give(int to, const std::byte* data, size_t bytes) override;
  void give_all(const std::byte* data, size_t bytes) override;
  void expect(int, size_t) override {}
  void exchange() override;
  const std::byte* piece(int from) const override;
  const std::byte* common_piece(int from) const override;

 private:
  // Written by its member only. `arrivals` counts the rounds; a member that reads another's arrivals also sees all
  // that the other wrote before. Signatures alternate between two places: nobody can be two operations ahead.
  struct alignas(64) Line {
    std::atomic<uint64_t> arrivals{0};
    std::atomic<uint64_t> op_number{0};
    OpInfo signatures[2];
  };
  static constexpr size_t kLineBytes = 256;

  Line& line(int member) const { return *reinterpret_cast<Line*>(region_.blocks[static_cast<size_t>(member)]); }
  std::byte* buffer(int member, uint64_t round) const;
  bool all_arrived();
  std::vector<MemberState> states() const;

  HostRank& rank_;
  GroupInfo group_;
  SharedRegion region_;
  size_t buffer_bytes_;
  size_t stride_;
  OpInfo op_;
  uint64_t num_rounds_ = 0;     // finished or being exchanged
  bool compare_ = false;        // signatures of this operation are still to be compared
  std::vector<char> compared_;  // by member
};

}  // namespace ashlar
