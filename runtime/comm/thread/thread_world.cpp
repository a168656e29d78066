#include "runtime/comm/thread/thread_world.h"

#include <cstdlib>

#include "runtime/comm/host/message_rounds.h"

namespace ashlar {
namespace {

std::shared_ptr<std::byte> aligned_bytes(size_t bytes) {
  constexpr size_t kPage = 4096;
  void* data = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  REQUIRE(data != nullptr, ErrorCode::kUsage, "out of memory: {} bytes of shared memory for a group of ranks", bytes);
  return {static_cast<std::byte*>(data), std::free};
}

}  // namespace

ThreadWorld::ThreadWorld(int num_ranks, Carrier carrier, size_t buffer_bytes)
    : num_ranks_(num_ranks),
      carrier_(carrier),
      buffer_bytes_(buffer_bytes),
      board_memory_(aligned_bytes(StatusBoard::region_bytes(num_ranks))),
      board_(board_memory_.get(), num_ranks, true) {}

std::shared_ptr<ThreadWorld::Group> ThreadWorld::group(const GroupInfo& info) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<Group>& known = groups_[info.id];
  if (std::shared_ptr<Group> group = known.lock()) {
    return group;
  }
  auto group = std::make_shared<Group>();
  const size_t size = static_cast<size_t>(info.size());
  group->exchange_mail.resize(size);
  group->round_mail.resize(size);
  if (carrier_ == Carrier::kRegion && size > 1) {
    const std::shared_ptr<std::byte> memory = aligned_bytes(size * RegionRounds::block_bytes(buffer_bytes_));
    group->region.owner = memory;
    for (size_t member = 0; member < size; ++member) {
      group->region.blocks.push_back(memory.get() + member * RegionRounds::block_bytes(buffer_bytes_));
      RegionRounds::initialize_block(group->region.blocks.back());
    }
  }
  known = group;
  return group;
}

GroupParts ThreadRank::make_group(const GroupInfo& info) {
  const std::shared_ptr<ThreadWorld::Group> shared = world_.group(info);
  GroupParts parts;
  parts.messenger = std::make_unique<ThreadMessenger>(
      *this, info, std::shared_ptr<PostOffice>(shared, &shared->exchange_mail), world_.board());
  if (info.size() > 1) {
    if (world_.carrier() == Carrier::kRegion) {
      SharedRegion region{shared, shared->region.blocks};
      parts.rounds = std::make_unique<RegionRounds>(*this, info, std::move(region), world_.buffer_bytes());
    } else {
      parts.rounds = std::make_unique<MessageRounds>(
          *this, info,
          std::make_unique<ThreadMessenger>(*this, info, std::shared_ptr<PostOffice>(shared, &shared->round_mail),
                                            world_.board()),
          world_.buffer_bytes());
    }
  }
  return parts;
}

void ThreadRank::progress() {
  for (ThreadMessenger* messenger : messengers_) {
    messenger->progress();
  }
}

void ThreadRank::abort(int exit_status) noexcept {
  try {
    board().end_job(recorder().world_rank(), ErrorCode::kCommunication, fmt::format("abort({})", exit_status));
  } catch (...) {
    // Only memory for the text can fail here, and then the peers' own deadlines end the job.
  }
}

}  // namespace ashlar
