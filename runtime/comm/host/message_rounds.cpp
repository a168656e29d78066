#include "runtime/comm/host/message_rounds.h"

#include <utility>

namespace ashlar {

MessageRounds::MessageRounds(HostRank& rank, GroupInfo group, std::unique_ptr<Messenger> messenger, size_t buffer_bytes)
    : rank_(rank),
      group_(std::move(group)),
      messenger_(std::move(messenger)),
      buffer_bytes_(buffer_bytes),
      signatures_(static_cast<size_t>(group_.size())),
      received_(static_cast<size_t>(group_.size()) * buffer_bytes_) {}

void MessageRounds::begin(const OpInfo& op) {
  op_ = op;
  compare_ = true;
  messages_.clear();
}

void MessageRounds::give(int to, const std::byte* data, size_t bytes) {
  if (to != group_.rank && bytes > 0) {
    messages_.push_back({.is_send = true, .peer = to, .data = const_cast<std::byte*>(data), .bytes = bytes});
  }
}

void MessageRounds::give_all(const std::byte* data, size_t bytes) {
  for (int to = 0; to < group_.size(); ++to) {
    give(to, data, bytes);
  }
}

void MessageRounds::expect(int from, size_t bytes) {
  if (from != group_.rank && bytes > 0) {
    messages_.push_back(
        {.peer = from, .data = received_.data() + static_cast<size_t>(from) * buffer_bytes_, .bytes = bytes});
  }
}

void MessageRounds::exchange() {
  if (compare_) {
    exchange_signatures();
    compare_ = false;
  }
  const uint64_t batch = messenger_->start(messages_);
  rank_.wait_until(
      [&] { return messenger_->finished(batch); },
      [&](double waited) { return late_collective_text(rank_.recorder(), group_, op_, waited, states(batch, true)); });
  messages_.clear();
}

// Everybody tells everybody what it is in. That is one small message a pair before each operation: the price of naming
// the member that is missing or elsewhere instead of hanging.
void MessageRounds::exchange_signatures() {
  std::vector<Message>& messages = signature_messages_;
  messages.clear();
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer != group_.rank) {
      messages.push_back(
          {.is_send = true, .peer = peer, .data = reinterpret_cast<std::byte*>(&op_), .bytes = sizeof(OpInfo)});
      messages.push_back({.peer = peer,
                          .data = reinterpret_cast<std::byte*>(&signatures_[static_cast<size_t>(peer)]),
                          .bytes = sizeof(OpInfo)});
    }
  }
  const uint64_t batch = messenger_->start(messages);
  rank_.wait_until(
      [&] {
        const bool all = messenger_->finished(batch);
        compare_signatures(batch);
        return all;
      },
      [&](double waited) { return late_collective_text(rank_.recorder(), group_, op_, waited, states(batch, false)); });
}

void MessageRounds::compare_signatures(uint64_t batch) {
  const std::span<const Message> messages = messenger_->messages(batch);
  for (size_t index = 0; index < messages.size(); ++index) {
    const int peer = messages[index].peer;
    if (!messages[index].is_send && messenger_->finished(batch, index) &&
        !(signatures_[static_cast<size_t>(peer)] == op_)) {
      rank_.fail(ErrorCode::kCommunication, mismatch_text(group_, op_, peer, signatures_[static_cast<size_t>(peer)]));
    }
  }
}

const std::byte* MessageRounds::piece(int from) const {
  return received_.data() + static_cast<size_t>(from) * buffer_bytes_;
}

// A member has entered when its signature came (`entered`: all signatures came earlier), and arrived when all messages
// from and to it are done.
std::vector<MemberState> MessageRounds::states(uint64_t batch, bool entered) const {
  std::vector<MemberState> states(static_cast<size_t>(group_.size()), {.entered = true, .arrived = true});
  const std::span<const Message> messages = messenger_->messages(batch);
  for (size_t index = 0; index < messages.size(); ++index) {
    MemberState& state = states[static_cast<size_t>(messages[index].peer)];
    if (!messenger_->finished(batch, index)) {
      state.arrived = false;
      state.entered = state.entered && (entered || messages[index].is_send);
    }
  }
  return states;
}

}  // namespace ashlar
