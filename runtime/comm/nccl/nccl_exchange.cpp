// Exchanges: through channels between neighbours, together on the lane of the collectives otherwise.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/comm/host/report.h"
#include "runtime/comm/nccl/nccl_communicator.h"
#include "runtime/comm/wait_reached.h"

namespace ashlar {
namespace {

using enum Transfer::Direction;

bool is_send(const Transfer& transfer) {
  return transfer.direction == kSend;
}

}  // namespace

Work NcclCommunicator::do_exchange(std::span<const Transfer> transfers, Stream& after) {
  if (transfers.empty()) {
    return {};
  }
  if (size() == 1) {
    return exchange_with_self(transfers, after);
  }
  const auto is_neighbour = [this](const Transfer& transfer) {
    return transfer.peer == (rank() + 1) % size() || transfer.peer == (rank() + size() - 1) % size();
  };
  if (!has_channels_ && std::any_of(transfers.begin(), transfers.end(), is_neighbour)) {
    make_channels();
  }
  int num_lane_ops = 0;
  bool together = false;
  for (const Transfer& transfer : transfers) {
    const bool own = lane_of(transfer) > 0;
    num_lane_ops += own || !together ? 1 : 0;
    together = together || !own;
  }
  Issued& issued = start_work(num_lane_ops);
  for (const Transfer& transfer : transfers) {
    if (const size_t index = lane_of(transfer); index > 0) {
      issued.numbers[index] = lanes_[index]->issue_message(transfer, issued.ticket, after);
    }
  }
  if (together) {
    send_or_receive_together(issued, transfers, after);
  }
  return {this, issued.ticket};
}

size_t NcclCommunicator::lane_of(const Transfer& transfer) const {
  return channels_[static_cast<size_t>(transfer.peer)][is_send(transfer) ? 0 : 1];
}

void NcclCommunicator::send_or_receive_together(Issued& issued, std::span<const Transfer> transfers, Stream& after) {
  const NcclLibrary& nccl = nccl_rank_->nccl();
  const auto call = [&](ncclComm_t comm, cudaStream_t stream) {
    ncclResult_t result = nccl.group_start();
    for (const Transfer& transfer : transfers) {
      if (result != ncclSuccess || lane_of(transfer) > 0) {
        continue;
      }
      const auto count = static_cast<size_t>(transfer.data.num_elements());
      const ncclDataType_t type = nccl_type(transfer.data.dtype);
      result = is_send(transfer) ? nccl.send(transfer.data.data, count, type, transfer.peer, comm, stream)
                                 : nccl.receive(transfer.data.data, count, type, transfer.peer, comm, stream);
    }
    const ncclResult_t end = nccl.group_end();
    return result != ncclSuccess ? result : end;
  };
  issued.numbers[0] = lane().issue_nccl(current_op(), issued.ticket, after, "ncclGroupEnd", call);
}

// A message of a group of one is copied when both of its sides are there, as work of the exchange that names the
// second. The exchange that named the first then waits for that copy too.
Work NcclCommunicator::exchange_with_self(std::span<const Transfer> transfers, Stream& after) {
  Issued& issued = start_work(1);
  const uint64_t number = lane().issue(current_op(), issued.ticket, after, [&] {
    for (const Transfer& transfer : transfers) {
      std::deque<OwnMessage>& mine = is_send(transfer) ? own_sends_ : own_receives_;
      std::deque<OwnMessage>& theirs = is_send(transfer) ? own_receives_ : own_sends_;
      if (theirs.empty()) {
        mine.push_back({transfer, issued.ticket});
        ++issued.unpaired;
        continue;
      }
      const OwnMessage other = theirs.front();
      theirs.pop_front();
      const Transfer& send = is_send(transfer) ? transfer : other.transfer;
      const Transfer& receive = is_send(transfer) ? other.transfer : transfer;
      REQUIRE(receive.tag == send.tag && receive.data.bytes() == send.data.bytes(), ErrorCode::kCommunication,
              "rank {} of group \"{}\", alone in it, sends {} bytes with tag {} and receives {} bytes with tag {}",
              rank(), name(), send.data.bytes(), send.tag, receive.data.bytes(), receive.tag);
      lane().stream().copy(receive.data.data, send.data.data, send.data.bytes());
      Issued& first = works_[other.ticket % kMaxWorks];
      --first.unpaired;
      first.numbers[0] = num_works_;  // a group of one issues one lane operation for each work
    }
  });
  DCHECK(number == num_works_, "work {} of a group of one is lane operation {}", num_works_, number);
  issued.numbers[0] = number;
  return {this, issued.ticket};
}

// Every rank of the group calls ncclCommSplit alike. In each split two ranks of a pair meet, and no rank is in two
// pairs: first (0,1), (2,3), ..., then (1,2), (3,4), ..., then the last and the first, each once for either direction.
void NcclCommunicator::make_channels() {
  has_channels_ = true;
  const GroupInfo meeting{.id = child_group_id(group_id(), 0, -1),
                          .name = fmt::format("channels of {}", name()),
                          .rank = rank(),
                          .world_ranks = group_.world_ranks};
  const int slot = recorder().open_group(meeting.id, meeting.name, GroupKind::kChannel);
  const OpInfo op{.number = 1, .kind = OpKind::kSplit};
  recorder().enter(slot, op);
  for (int first : {0, 1, size() - 1}) {
    if (first == size() - 1 && size() == 2) {
      continue;
    }
    const bool wraps = first == size() - 1;
    // The pair of this rank, by its lower end; -1: none.
    int lower = -1;
    if (wraps) {
      lower = rank() == size() - 1 || rank() == 0 ? size() - 1 : -1;
    } else if (const int below = (rank() - first) / 2 * 2 + first; rank() >= first && below + 1 < size()) {
      lower = below;
    }
    if (size() == 2 && first == 1) {
      continue;  // there is one pair only
    }
    for (const bool upwards : {true, false}) {
      make_channel(lower, upwards, meeting, op);
    }
  }
  recorder().finish(slot, op);
  recorder().close_group(slot);
}

void NcclCommunicator::make_channel(int lower, bool upwards, const GroupInfo& meeting, const OpInfo& op) {
  const int upper = (lower + 1) % size();
  const int from = upwards ? lower : upper;
  const int to = upwards ? upper : lower;
  const std::string channel_name = fmt::format("{} {}>{}", name(), from, to);
  const ncclComm_t comm =
      split_comm(lower < 0 ? NCCL_SPLIT_NOCOLOR : lower, rank() == from ? 0 : 1, channel_name, op, meeting);
  if (lower < 0) {
    return;
  }
  const GroupInfo ends{
      .id = child_group_id(group_id(), 1 + static_cast<uint64_t>(from), to),
      .name = channel_name,
      .rank = rank() == from ? 0 : 1,
      .world_ranks = {group_.world_ranks[static_cast<size_t>(from)], group_.world_ranks[static_cast<size_t>(to)]}};
  lanes_.push_back(std::make_unique<NcclLane>(*nccl_rank_, comm, ends, nccl_rank_->new_stream(), std::nullopt,
                                              [this](uint64_t ticket) { ended(ticket); }));
  const int peer = rank() == from ? to : from;
  channels_[static_cast<size_t>(peer)][rank() == from ? 0 : 1] = lanes_.size() - 1;
  connect(*lanes_.back(), op, meeting);
}

// NCCL connects the two ends of a channel at its first message, and until both have come the host waits: here they come
// together, while in a list of actions each might first wait at the other's channel. Blocks the host.
void NcclCommunicator::connect(NcclLane& channel, const OpInfo& op, const GroupInfo& meeting) {
  const NcclLibrary& nccl = nccl_rank_->nccl();
  CudaStream& stream = channel.stream();
  const bool sends = channel.group().rank == 0;
  nccl_rank_->call(
      sends ? "ncclSend" : "ncclRecv",
      [&] {
        return sends ? nccl.send(scratch_.data(), 1, ncclUint8, 1, channel.comm(), stream.handle())
                     : nccl.receive(scratch_.data(), 1, ncclUint8, 0, channel.comm(), stream.handle());
      },
      channel.comm(), recorder().timeout_seconds(),
      [&](double waited) { return late_text(recorder(), meeting, op, waited); });
  const auto arrived = nccl_rank_->device().create_event();
  stream.record(*arrived);
  wait_reached(*arrived, stream, recorder(), "the first message of a channel");
}

}  // namespace ashlar
