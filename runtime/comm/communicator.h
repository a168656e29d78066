// The only way data moves between ranks. Every operation of every backend enters here, is recorded, and is then carried
// out by the backend, so one recorder sees all traffic in order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/op_info.h"
#include "runtime/tensor/tensor.h"

namespace ashlar {

class Communicator;

// One leg of an exchange. Legs between the same two ranks pair in the order in which each side lists them; `tag` is
// compared on both sides (where the backend can) so that a wrong pairing is an error, not wrong numbers.
struct Transfer {
  enum class Direction { kSend, kReceive };
  Direction direction = Direction::kSend;
  int peer = 0;  // rank in this communicator
  int tag = 0;
  TensorView data;  // only read when sending
};

// One operation in flight; its operands stay alive until it is waited on. A small value: copying it copies the handle.
class Work {
 public:
  Work() = default;  // already done
  Work(Communicator* comm, uint64_t ticket) : comm_(comm), ticket_(ticket) {}

  void wait(Stream& stream);  // Stream-ordered: later work on the stream starts after the operation.
  void wait_host();           // Blocks the host; throws Error(kTimeout) at the communicator's deadline.
  bool done() const { return comm_ == nullptr; }  // nothing to wait for

 private:
  Communicator* comm_ = nullptr;
  uint64_t ticket_ = 0;
};

// A fixed group of ranks. All ranks of the group call the same operations in the same order, from one thread.
// Host-memory backends promise a fixed order of summation (ascending rank, fp32 accumulation for 16-bit types), so
// results repeat bit for bit, and all_reduce equals reduce_scatter followed by all_gather; and that a maximum keeps
// NaN. On host-memory backends collectives finish before the call returns (they wait for `after` and block the host);
// on the others they are stream-ordered, and end when the work is waited on. exchange does not wait for its peers.
class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }  // "world", "tensor", "data", ...
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  std::span<const int> world_ranks() const { return world_ranks_; }  // world rank of each member

  // Collective. In place: x becomes the sum (or maximum) over all ranks. fp32, fp64, bf16, fp16, int64.
  Work all_reduce(TensorView x, ReduceOp op, Stream& after);
  // Collective. out [size * n] = the in [n] of rank 0, 1, ... one after another; in may be its own part of out.
  Work all_gather(TensorView out, ConstTensorView in, Stream& after);
  // Collective. out [n] = part `rank` of the sum over ranks of in [size * n]; out may be its own part of in.
  Work reduce_scatter(TensorView out, ConstTensorView in, ReduceOp op, Stream& after);
  // Collective. x of `root` reaches all.
  Work broadcast(TensorView x, int root, Stream& after);
  // Collective among the named peers only. Starts all legs at once; waiting on the work finishes all of them.
  Work exchange(std::span<const Transfer> transfers, Stream& after);
  // Collective. Blocks the host.
  void barrier();
  // Collective. Blocks the host. Ranks with the same color form a group, ordered by key; color < 0 joins none
  // (nullptr).
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name);
  // Collective. Blocks the host. Makes what a backend otherwise makes at the first collective, or at the first exchange
  // with a neighbour: connections and their memory. A group that was prepared waits for nobody there. Host memory needs
  // nothing.
  virtual void prepare_collectives() {}
  virtual void prepare_exchanges() {}
  // Ends the job from this rank: every other rank's waits throw or its process is killed. Never throws.
  virtual void abort(int exit_status) noexcept = 0;

  // For communicators that are made of this one.
  uint64_t group_id() const { return group_id_; }
  FlightRecorder& recorder() const { return recorder_; }

  // Operations so far, for tests that count traffic.
  int64_t num_ops(OpKind kind) const;
  int64_t bytes_sent(OpKind kind) const;  // payload this rank contributed, summed

 protected:
  // `group_id` is the same number on all members and differs from that of every other group of the job.
  Communicator(std::string name, int rank, std::vector<int> world_ranks, uint64_t group_id, FlightRecorder& recorder,
               GroupKind kind);

  // Pure. What a split makes of this group, from color and key of each member in turn; for the group of `color`.
  struct Part {
    uint64_t group_id = 0;
    int rank = 0;
    std::vector<int> world_ranks;
  };
  Part part_of(std::span<const int64_t> colors_and_keys, int color) const;

  // An operation that returns a Work with something to wait for is recorded as finished by the backend, when it is.
  virtual Work do_all_reduce(TensorView x, ReduceOp op, Stream& after) = 0;
  virtual Work do_all_gather(TensorView out, ConstTensorView in, Stream& after) = 0;
  virtual Work do_reduce_scatter(TensorView out, ConstTensorView in, ReduceOp op, Stream& after) = 0;
  virtual Work do_broadcast(TensorView x, int root, Stream& after) = 0;
  virtual Work do_exchange(std::span<const Transfer> transfers, Stream& after) = 0;
  virtual void do_barrier() = 0;
  virtual std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) = 0;
  virtual void wait_host(uint64_t ticket) = 0;
  virtual void wait_stream(uint64_t ticket, Stream& stream) = 0;

  const OpInfo& current_op() const { return current_op_; }  // the operation being carried out, for the backend's checks
  int record_slot() const { return record_slot_; }          // this group's ring in the recorder

 private:
  friend class Work;
  class Recorded;

  std::string name_;
  int rank_;
  std::vector<int> world_ranks_;
  uint64_t group_id_;
  FlightRecorder& recorder_;
  int record_slot_;
  OpInfo current_op_;
  uint64_t num_collectives_ = 0;
  uint64_t num_exchanges_ = 0;
  std::array<int64_t, kNumOpKinds> num_ops_{};
  std::array<int64_t, kNumOpKinds> bytes_sent_{};
};

}  // namespace ashlar
