// Rounds through messages, for groups that share no memory: every piece goes straight to the member that needs it.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/host/host_rank.h"
#include "runtime/comm/host/report.h"
#include "runtime/comm/host/rounds.h"

namespace ashlar {

class MessageRounds final : public Rounds {
 public:
  MessageRounds(HostRank& rank, GroupInfo group, std::unique_ptr<Messenger> messenger, size_t buffer_bytes);

  size_t piece_capacity() const override { return buffer_bytes_; }
  size_t common_capacity() const override { return buffer_bytes_; }
  void begin(const OpInfo& op) override;
  void give(int to, const std::byte* data, size_t bytes) override;
  void give_all(const std::byte* data, size_t bytes) override;
  void expect(int from, size_t bytes) override;
  void exchange() override;
  const std::byte* piece(int from) const override;
  const std::byte* common_piece(int from) const override { return piece(from); }

 private:
  void exchange_signatures();
  void compare_signatures(uint64_t batch);
  std::vector<MemberState> states(uint64_t batch, bool entered) const;

  HostRank& rank_;
  GroupInfo group_;
  std::unique_ptr<Messenger> messenger_;
  size_t buffer_bytes_;
  OpInfo op_;
  bool compare_ = false;  // the members' signatures are still to be exchanged
  std::vector<OpInfo> signatures_;
  std::vector<Message> messages_;  // of the round being prepared
  std::vector<Message> signature_messages_;
  std::vector<std::byte> received_;  // buffer_bytes_ a member
};

}  // namespace ashlar
