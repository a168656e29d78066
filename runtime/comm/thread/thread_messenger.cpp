#include "runtime/comm/thread/thread_messenger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/comm/thread/thread_world.h"

namespace ashlar {

void LegQueue::push(Leg* leg) {
  leg->next = nullptr;
  (head == nullptr ? head : tail->next) = leg;
  tail = leg;
}

void LegQueue::pop() {
  head = head->next;
}

ThreadMessenger::ThreadMessenger(ThreadRank& rank, const GroupInfo& group, std::shared_ptr<PostOffice> mail,
                                 StatusBoard& board)
    : rank_(rank), group_(group), mail_(std::move(mail)), board_(board), receives_(static_cast<size_t>(group.size())) {
  rank_.messengers_.push_back(this);
  for (Batch& batch : ring_) {  // a pipeline's exchanges have up to four legs: even the first ones allocate nothing
    batch.messages.reserve(4);
    batch.legs.reserve(4);
  }
}

ThreadMessenger::~ThreadMessenger() {
  std::erase(rank_.messengers_, this);
  // Sends that nobody received must not be found after their memory is gone.
  for (int to = 0; to < group_.size(); ++to) {
    PostOffice::Mailbox& box = mail_->box(group_.rank, to);
    const std::lock_guard lock(box.mutex);
    box.sends = {};
  }
}

uint64_t ThreadMessenger::start(std::span<const Message> messages) {
  Batch& batch = ring_[++num_batches_ % kMaxBatches];
  batch.number = num_batches_;
  batch.messages.assign(messages.begin(), messages.end());
  batch.legs.clear();
  for (const Message& message : messages) {
    batch.legs.push_back({.message = message});
  }
  for (Leg& leg : batch.legs) {  // the legs stay where they are from here on
    if (leg.message.is_send) {
      PostOffice::Mailbox& box = mail_->box(group_.rank, leg.message.peer);
      const std::lock_guard lock(box.mutex);
      box.sends.push(&leg);
    } else {
      receives_[static_cast<size_t>(leg.message.peer)].push(&leg);
    }
  }
  return num_batches_;
}

void ThreadMessenger::progress() {
  for (int from = 0; from < group_.size(); ++from) {
    match(from);
  }
}

void ThreadMessenger::match(int from) {
  LegQueue& receives = receives_[static_cast<size_t>(from)];
  if (receives.head == nullptr) {
    return;
  }
  PostOffice::Mailbox& box = mail_->box(from, group_.rank);
  const std::lock_guard lock(box.mutex);
  // A rank that ended the job is unwinding: what it sent may be gone.
  while (receives.head != nullptr && box.sends.head != nullptr && !board_.job_ended()) {
    Leg& send = *box.sends.head;
    Leg& receive = *receives.head;
    if (send.message.tag != receive.message.tag || send.message.bytes != receive.message.bytes) {
      rank_.fail(ErrorCode::kCommunication,
                 fmt::format("messages of group \"{}\" do not pair: rank {} sends {} bytes with tag {}, rank {} "
                             "receives {} bytes with tag {}",
                             group_.name, group_.world_ranks[static_cast<size_t>(from)], send.message.bytes,
                             send.message.tag, group_.world_ranks[static_cast<size_t>(group_.rank)],
                             receive.message.bytes, receive.message.tag));
    }
    if (receive.message.bytes > 0) {
      std::memcpy(receive.message.data, send.message.data, receive.message.bytes);
    }
    receives.pop();
    box.sends.pop();
    receive.done = true;
    send.done = true;
  }
}

bool ThreadMessenger::leg_done(Leg& leg) {
  if (!leg.message.is_send) {
    return leg.done;
  }
  const std::lock_guard lock(mail_->box(group_.rank, leg.message.peer).mutex);
  return leg.done;
}

bool ThreadMessenger::finished(uint64_t number) {
  Batch& batch = ring_[number % kMaxBatches];
  if (batch.number != number) {
    return true;
  }
  progress();
  return std::all_of(batch.legs.begin(), batch.legs.end(), [this](Leg& leg) { return leg_done(leg); });
}

bool ThreadMessenger::finished(uint64_t number, size_t index) {
  Batch& batch = ring_[number % kMaxBatches];
  return batch.number != number || leg_done(batch.legs[index]);
}

std::span<const Message> ThreadMessenger::messages(uint64_t number) const {
  return ring_[number % kMaxBatches].messages;
}

}  // namespace ashlar
