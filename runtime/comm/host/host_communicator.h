// The communicator of host memory: collectives over rounds, exchange over messages. Threads and MPI differ only in what
// carries the two.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/host/collectives.h"
#include "runtime/comm/host/host_rank.h"

namespace ashlar {

class HostCommunicator final : public Communicator {
 public:
  // Collective among the members.
  HostCommunicator(HostRank& rank, const GroupInfo& group);

  void abort(int exit_status) noexcept override { host_rank_.abort(exit_status); }

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
  void before_operation(Stream* after);

  HostRank& host_rank_;
  GroupInfo group_;
  GroupParts parts_;
  Collectives collectives_;
  std::vector<Message> messages_;  // of the exchange being started; kept, so that none allocates
  std::vector<uint64_t> waited_;   // by place in the messenger's ring: the batch that was waited for last
};

}  // namespace ashlar
