// Messages between threads: the sender leaves a note in the mailbox of an ordered pair of ranks, the receiver copies
// from the sender's memory when it next looks.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/comm/host/host_rank.h"
#include "runtime/comm/host/messenger.h"

namespace ashlar {

// A message under way. Chained into a mailbox (sends) or into its messenger (receives), so that queues need no memory
// of their own.
struct Leg {
  Message message;
  bool done = false;  // of a send: guarded by the mailbox
  Leg* next = nullptr;
};

struct LegQueue {
  Leg* head = nullptr;
  Leg* tail = nullptr;
  void push(Leg* leg);
  void pop();
};

// The mailboxes of a group: one for each ordered pair.
class PostOffice {
 public:
  struct Mailbox {
    std::mutex mutex;
    LegQueue sends;
  };
  void resize(size_t num_ranks) {
    num_ranks_ = num_ranks;
    boxes_ = std::vector<Mailbox>(num_ranks * num_ranks);
  }
  Mailbox& box(int from, int to) { return boxes_[static_cast<size_t>(from) * num_ranks_ + static_cast<size_t>(to)]; }

 private:
  size_t num_ranks_ = 0;
  std::vector<Mailbox> boxes_;
};

class ThreadRank;

class ThreadMessenger final : public Messenger {
 public:
  ThreadMessenger(ThreadRank& rank, const GroupInfo& group, std::shared_ptr<PostOffice> mail, StatusBoard& board);
  ~ThreadMessenger() override;
  ThreadMessenger(const ThreadMessenger&) = delete;
  ThreadMessenger& operator=(const ThreadMessenger&) = delete;

  uint64_t start(std::span<const Message> messages) override;
  bool finished(uint64_t batch) override;
  bool finished(uint64_t batch, size_t index) override;
  std::span<const Message> messages(uint64_t batch) const override;

  // Copies what has been sent to this rank. Throws when a message is not the one that is expected.
  void progress();

 private:
  struct Batch {
    uint64_t number = 0;
    std::vector<Message> messages;
    std::vector<Leg> legs;
  };

  void match(int from);
  bool leg_done(Leg& leg);

  ThreadRank& rank_;
  GroupInfo group_;
  std::shared_ptr<PostOffice> mail_;
  StatusBoard& board_;
  uint64_t num_batches_ = 0;
  std::array<Batch, kMaxBatches> ring_;
  std::vector<LegQueue> receives_;  // by sender
};

}  // namespace ashlar
