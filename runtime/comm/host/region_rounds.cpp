#include "runtime/comm/host/region_rounds.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace ashlar {

size_t RegionRounds::block_bytes(size_t buffer_bytes) {
  static_assert(sizeof(Line) <= kLineBytes);
  return kLineBytes + 2 * buffer_bytes;
}

void RegionRounds::initialize_block(std::byte* block) {
  new (block) Line;
}

RegionRounds::RegionRounds(HostRank& rank, GroupInfo group, SharedRegion region, size_t buffer_bytes)
    : rank_(rank),
      group_(std::move(group)),
      region_(std::move(region)),
      buffer_bytes_(buffer_bytes),
      stride_(buffer_bytes / static_cast<size_t>(group_.size()) / 64 * 64),
      compared_(static_cast<size_t>(group_.size())) {}

// Round n uses buffer n % 2. A buffer is written again two rounds later, and in between its writer has seen everybody
// arrive at the next round, which they do after reading this one. So one meeting a round is enough.
std::byte* RegionRounds::buffer(int member, uint64_t round) const {
  return region_.blocks[static_cast<size_t>(member)] + kLineBytes + (round % 2) * buffer_bytes_;
}

void RegionRounds::begin(const OpInfo& op) {
  op_ = op;
  compare_ = true;
  std::fill(compared_.begin(), compared_.end(), char{0});
  Line& mine = line(group_.rank);
  mine.signatures[op.number % 2] = op;
  mine.op_number.store(op.number, std::memory_order_release);
}

void RegionRounds::give(int to, const std::byte* data, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(buffer(group_.rank, num_rounds_ + 1) + static_cast<size_t>(to) * stride_, data, bytes);
  }
}

void RegionRounds::give_all(const std::byte* data, size_t bytes) {
  if (bytes > 0) {
    std::memcpy(buffer(group_.rank, num_rounds_ + 1), data, bytes);
  }
}

void RegionRounds::exchange() {
  ++num_rounds_;
  line(group_.rank).arrivals.store(num_rounds_, std::memory_order_release);
  rank_.wait_until(
      [this] { return all_arrived(); },
      [this](double waited) { return late_collective_text(rank_.recorder(), group_, op_, waited, states()); });
  compare_ = false;
}

bool RegionRounds::all_arrived() {
  bool all = true;
  for (int member = 0; member < group_.size(); ++member) {
    const Line& other = line(member);
    if (other.arrivals.load(std::memory_order_acquire) < num_rounds_) {
      all = false;
    } else if (compare_ && !compared_[static_cast<size_t>(member)]) {
      compared_[static_cast<size_t>(member)] = 1;
      const OpInfo& theirs = other.signatures[op_.number % 2];
      if (!(theirs == op_)) {
        rank_.fail(ErrorCode::kCommunication, mismatch_text(group_, op_, member, theirs));
      }
    }
  }
  return all;
}

const std::byte* RegionRounds::piece(int from) const {
  return buffer(from, num_rounds_) + static_cast<size_t>(group_.rank) * stride_;
}

const std::byte* RegionRounds::common_piece(int from) const {
  return buffer(from, num_rounds_);
}

std::vector<MemberState> RegionRounds::states() const {
  std::vector<MemberState> states;
  for (int member = 0; member < group_.size(); ++member) {
    states.push_back({.entered = line(member).op_number.load(std::memory_order_acquire) >= op_.number,
                      .arrived = line(member).arrivals.load(std::memory_order_acquire) >= num_rounds_});
  }
  return states;
}

}  // namespace ashlar
