// What the ranks of one process share: the status board, and for each group a region and mailboxes.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/comm/host/carrier.h"
#include "runtime/comm/host/host_rank.h"
#include "runtime/comm/host/region_rounds.h"
#include "runtime/comm/thread/thread_messenger.h"

namespace ashlar {

class ThreadWorld {
 public:
  ThreadWorld(int num_ranks, Carrier carrier, size_t buffer_bytes);

  int num_ranks() const { return num_ranks_; }
  Carrier carrier() const { return carrier_; }
  size_t buffer_bytes() const { return buffer_bytes_; }
  StatusBoard& board() { return board_; }

  // What the members of a group share; made by the first of them, freed by the last.
  struct Group {
    SharedRegion region;
    PostOffice exchange_mail;
    PostOffice round_mail;
  };
  std::shared_ptr<Group> group(const GroupInfo& info);

 private:
  int num_ranks_;
  Carrier carrier_;
  size_t buffer_bytes_;  // of a member in each group: the size of chunks
  std::shared_ptr<std::byte> board_memory_;
  StatusBoard board_;
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Group>> groups_;
};

class ThreadRank final : public HostRank {
 public:
  ThreadRank(ThreadWorld& world, FlightRecorder& recorder) : HostRank(recorder), world_(world) {}

  GroupParts make_group(const GroupInfo& group) override;
  void progress() override;
  void abort(int exit_status) noexcept override;

 private:
  friend class ThreadMessenger;
  ThreadWorld& world_;
  std::vector<ThreadMessenger*> messengers_;  // the live ones of this rank
};

}  // namespace ashlar
