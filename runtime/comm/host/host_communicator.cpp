#include "runtime/comm/host/host_communicator.h"

#include <utility>

#include "runtime/comm/host/report.h"

namespace ashlar {
HostCommunicator::HostCommunicator(HostRank& rank, const GroupInfo& group)
    : Communicator(group.name, group.rank, group.world_ranks, group.id, rank.recorder(), GroupKind::kBlocking),
      host_rank_(rank),
      group_(group),
      parts_(rank.make_group(group)),
      collectives_(parts_.rounds.get(), group.rank, group.size()),
      waited_(Messenger::kMaxBatches) {}

// Operands are ready when the stream's earlier work is done. A job that has ended starts nothing new: its last rank
// would otherwise complete an operation that the others have given up.
void HostCommunicator::before_operation(Stream* after) {
  if (after != nullptr) {
    after->synchronize();
  }
  host_rank_.check_job_runs();
}

Work HostCommunicator::do_all_reduce(TensorView x, ReduceOp, Stream& after) {
  before_operation(&after);
  collectives_.all_reduce(current_op(), x);
  return {};
}

Work HostCommunicator::do_all_gather(TensorView out, ConstTensorView in, Stream& after) {
  before_operation(&after);
  collectives_.all_gather(current_op(), out.data, in.data, in.bytes());
  return {};
}

Work HostCommunicator::do_reduce_scatter(TensorView out, ConstTensorView in, ReduceOp, Stream& after) {
  before_operation(&after);
  collectives_.reduce_scatter(current_op(), out, in);
  return {};
}

Work HostCommunicator::do_broadcast(TensorView x, int, Stream& after) {
  before_operation(&after);
  collectives_.broadcast(current_op(), x.data, x.bytes());
  return {};
}

void HostCommunicator::do_barrier() {
  before_operation(nullptr);
  collectives_.barrier(current_op());
}

Work HostCommunicator::do_exchange(std::span<const Transfer> transfers, Stream& after) {
  before_operation(&after);
  const uint64_t ticket = current_op().number;
  if (ticket > Messenger::kMaxBatches) {
    wait_host(ticket - Messenger::kMaxBatches);  // its place in the ring is needed
  }
  messages_.clear();
  for (const Transfer& transfer : transfers) {
    messages_.push_back({.is_send = transfer.direction == Transfer::Direction::kSend,
                         .peer = transfer.peer,
                         .tag = transfer.tag,
                         .data = transfer.data.data,
                         .bytes = transfer.data.bytes()});
  }
  const uint64_t batch = parts_.messenger->start(messages_);
  DCHECK(batch == ticket, "exchange {} became batch {}", ticket, batch);
  return {this, ticket};
}

void HostCommunicator::wait_host(uint64_t ticket) {
  uint64_t& waited = waited_[ticket % Messenger::kMaxBatches];
  if (waited >= ticket) {
    return;
  }
  OpInfo op{.number = ticket, .kind = OpKind::kExchange};
  if (const std::optional<OpRecord> record = recorder().find(record_slot(), OpKind::kExchange, ticket)) {
    op = record->op;
  }
  recorder().wait_begins(record_slot(), op);
  host_rank_.wait_until([&] { return parts_.messenger->finished(ticket); },
                        [&](double waited_seconds) {
                          const std::span<const Message> messages = parts_.messenger->messages(ticket);
                          size_t index = 0;
                          while (index + 1 < messages.size() && parts_.messenger->finished(ticket, index)) {
                            ++index;
                          }
                          return late_exchange_text(host_rank_.recorder(), group_, op, waited_seconds, messages[index]);
                        });
  recorder().finish(record_slot(), op);
  waited = ticket;
}

void HostCommunicator::wait_stream(uint64_t ticket, Stream&) {
  wait_host(ticket);  // work that is put on the stream from now on comes after it
}

std::unique_ptr<Communicator> HostCommunicator::do_split(int color, int key, const std::string& name) {
  before_operation(nullptr);
  const int64_t mine[2] = {color, key};
  std::vector<int64_t> all(static_cast<size_t>(size()) * 2);
  collectives_.all_gather(current_op(), reinterpret_cast<std::byte*>(all.data()),
                          reinterpret_cast<const std::byte*>(mine), sizeof(mine));
  if (color < 0) {
    return nullptr;
  }
  const Part part = part_of(all, color);
  const GroupInfo group{.id = part.group_id, .name = name, .rank = part.rank, .world_ranks = part.world_ranks};
  return std::make_unique<HostCommunicator>(host_rank_, group);
}

}  // namespace ashlar
