// The communicator behind make_staged().
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/host/messenger.h"
#include "runtime/comm/staged/staging.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ashlar {

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, std::shared_ptr<Staging> staging, const std::string& name);
  ~StagedCommunicator() override;

  void abort(int exit_status) noexcept override { host_->abort(exit_status); }

 protected:
  Work do_all_reduce(TensorView x, ReduceOp op, Stream& after) override;
  Work do_all_gather(TensorView out, ConstTensorView in, Stream& after) override;
  Work do_reduce_scatter(TensorView out, ConstTensorView in, ReduceOp op, Stream& after) override;
  Work do_broadcast(TensorView x, int root, Stream& after) override;
  Work do_exchange(std::span<const Transfer> transfers, Stream& after) override;
  void do_barrier() override { host_->barrier(); }
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) override;
  void wait_host(uint64_t ticket) override;
  void wait_stream(uint64_t ticket, Stream& stream) override;

 private:
  // An exchange in flight: what the host communicator carries, and where received data goes.
  struct Leg {
    std::unique_ptr<StagingBlock> block;
    TensorView target;  // no data: a send
  };
  struct Batch {
    uint64_t ticket = 0;
    bool finished = true;
    Work work;
    std::vector<Leg> legs;
    std::unique_ptr<Event> posted;  // what the targets were used for before
    std::unique_ptr<Event> done;    // received data is in place
  };
  static constexpr uint64_t kMaxBatches = Messenger::kMaxBatches;

  template <typename Down, typename Carry, typename Up>
  Work in_chunks(int64_t num_elements, size_t element_bytes, Stream& after, Down&& down, Carry&& carry, Up&& up);
  Batch& batch_of(uint64_t ticket) { return batches_[ticket % kMaxBatches]; }
  void finish(Batch& batch, Stream& stream);

  std::unique_ptr<Communicator> host_;
  std::shared_ptr<Staging> staging_;
  CpuDevice host_device_;
  std::unique_ptr<Stream> host_stream_;  // inline: what `host` is given is ready
  std::unique_ptr<Stream> stream_;       // for received data that no stream waited for
  std::unique_ptr<Event> collectives_done_;
  std::array<Batch, kMaxBatches> batches_;
  std::vector<Transfer> transfers_;  // of the exchange being started; kept, so that none allocates
};

}  // namespace ashlar
