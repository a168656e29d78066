// The communicator of device memory over NCCL. Operations are stream-ordered: they go to a stream of the group's own,
// behind the work on `after`, and the host waits for none of them.
//
// Messages to and from a neighbour in the group (in a ring: the next and the previous rank) go through a channel for
// each direction, so one that waits for its other side holds up nothing else, as schedules assume. Other messages share
// the lane of the collectives: both sides name them in the same order among these, and the two directions in one
// exchange. The first exchange with a neighbour makes the channels: it is Collective over the group and blocks the
// host.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl/nccl_lane.h"

namespace ashlar {

class NcclCommunicator final : public Communicator {
 public:
  // `comm` is null for a group of one.
  NcclCommunicator(std::shared_ptr<NcclRank> rank, ncclComm_t comm, const GroupInfo& group);
  ~NcclCommunicator() override;

  void abort(int exit_status) noexcept override;

 protected:
  Work do_all_reduce(TensorView x, ReduceOp op, Stream& after) override;
  Work do_all_gather(TensorView out, ConstTensorView in, Stream& after) override;
  Work do_reduce_scatter(TensorView out, ConstTensorView in, ReduceOp op, Stream& after) override;
  Work do_broadcast(TensorView x, int root, Stream& after) override;
  Work do_exchange(std::span<const Transfer> transfers, Stream& after) override;
  void do_barrier() override;
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) override;
  void wait_host(uint64_t ticket) override;
  void wait_stream(uint64_t ticket, Stream& stream) override;

 private:
  static constexpr size_t kMostLanes = 5;  // collectives, to and from the next rank, to and from the previous one
  static constexpr uint64_t kMaxWorks = NcclLane::kMaxOps;

  // An operation of this communicator: what it is, and its numbers on the lanes that carry it (0: none).
  struct Issued {
    uint64_t ticket = 0;
    OpInfo op;
    int remaining = 0;  // lane operations that have not ended; under NcclRank::lanes_mutex()
    int unpaired = 0;   // messages of a group of one whose other side has not been named
    std::array<uint64_t, kMostLanes> numbers{};
  };

  struct OwnMessage {
    Transfer transfer;
    uint64_t ticket = 0;
  };

  NcclLane& lane() { return *lanes_.front(); }
  Issued& start_work(int num_lane_ops);
  Work started(Issued& issued, uint64_t number) {
    issued.numbers[0] = number;
    return {this, issued.ticket};
  }
  void check_alike();
  template <typename Call>
  Work collective(const char* name, Stream& after, Call&& call);
  Work local_copy(std::byte* out, const std::byte* in, size_t bytes, Stream& after);
  Work exchange_with_self(std::span<const Transfer> transfers, Stream& after);
  void send_or_receive_together(Issued& issued, std::span<const Transfer> transfers, Stream& after);
  void ended(uint64_t ticket);
  const Issued& waited_work(uint64_t ticket) const;

  // The lane of a transfer: an index into lanes_; 0 for the one of the collectives.
  size_t lane_of(const Transfer& transfer) const;
  void make_channels();
  // Between ranks `lower` and its next one, which meet in `op` of `meeting`; lower < 0: this rank is in no pair.
  void make_channel(int lower, bool upwards, const GroupInfo& meeting, const OpInfo& op);
  void connect(NcclLane& channel, const OpInfo& op, const GroupInfo& meeting);
  ncclComm_t split_comm(int color, int key, const std::string& name, const OpInfo& op, const GroupInfo& waits_in);

  std::shared_ptr<NcclRank> nccl_rank_;
  GroupInfo group_;
  int num_exceptions_;  // under way when this was made: more at its end mean that an error is leaving
  std::vector<std::unique_ptr<NcclLane>> lanes_;
  std::vector<std::array<size_t, 2>> channels_;  // by peer: lane for sending, lane for receiving; 0: none
  bool has_channels_ = false;
  std::deque<OwnMessage> own_sends_;  // of a group of one: the other side has not been named
  std::deque<OwnMessage> own_receives_;
  Buffer scratch_;       // of splits and barriers
  Buffer host_scratch_;  // pinned
  uint64_t num_works_ = 0;
  std::array<Issued, kMaxWorks> works_;
};

}  // namespace ashlar
