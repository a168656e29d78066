// One NCCL communicator, the stream that its operations go to, and which of them are under way. A group has one lane
// for its collectives, and one for each direction in which it talks to a neighbour.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/nccl/nccl_rank.h"

namespace ashlar {

class NcclLane {
 public:
  // So many operations may be under way; before one more the host waits for the oldest. Two steps are on their way at
  // once. For each layer and micro-batch a tensor group has four collectives, with sequence parallelism ten, and at
  // ZeRO stage 3 a data group has three for each bucket of the layer: kMaxOps is enough for 100 layers x micro-batches
  // of a stage in each step. A channel carries one message, and a group of one one copy, for each micro-batch at most.
  static constexpr uint64_t kMaxOps = 2048;
  static constexpr uint64_t kMaxMessages = 512;

  // `comm` may be null: a group of one, whose operations are copies. `ended(ticket)` is called by any thread, once for
  // each operation, in order, under NcclRank::lanes_mutex(). A channel has no `record_slot` and opens its own.
  NcclLane(NcclRank& rank, ncclComm_t comm, const GroupInfo& group, std::shared_ptr<CudaStream> stream,
           std::optional<int> record_slot, std::function<void(uint64_t ticket)> ended);
  ~NcclLane();
  NcclLane(const NcclLane&) = delete;
  NcclLane& operator=(const NcclLane&) = delete;

  // Puts work behind what is on `after` now: enqueue() is called between the marks of its start and end. Returns its
  // number on the lane. Blocks the host only when the lane is full. Does not allocate.
  template <typename Enqueue>
  uint64_t issue(const OpInfo& op, uint64_t ticket, Stream& after, Enqueue&& enqueue);
  // The same for one call of NCCL or one group of them: call(comm, stream) gives its result.
  template <typename Call>
  uint64_t issue_nccl(const OpInfo& op, uint64_t ticket, Stream& after, const char* name, Call&& call);
  // The next message of a channel: checks, numbers and records it.
  uint64_t issue_message(const Transfer& transfer, uint64_t ticket, Stream& after);

  void wait(uint64_t number, Stream& stream);  // Stream-ordered: later work on the stream starts after the operation.
  void wait_host(uint64_t number);             // Blocks the host.

  ncclComm_t comm() const { return comm_; }
  CudaStream& stream() { return *stream_; }
  const GroupInfo& group() const { return group_; }

  // Begins to end the communicator, in step with its other ranks; `end` follows when all lanes have begun.
  void begin_end();
  void end();

  // For the watchdog, under NcclRank::lanes_mutex().
  struct Oldest {
    OpInfo op;
    int record_slot = 0;
    double waited_seconds = 0;
    bool started = false;  // on the device; otherwise it waits for the work before it
  };
  void advance(double now);                        // notes what has ended
  std::optional<Oldest> oldest(double now) const;  // of those under way
  std::string async_error() const;                 // empty: none
  void abort();

 private:
  struct Op {
    OpInfo info;
    uint64_t ticket = 0;
    double began_seconds = 0;  // issued; then, on the device
    bool started = false;
    std::unique_ptr<Event> start;
    std::unique_ptr<Event> end;
  };

  Op& op(uint64_t number) { return ops_[number % ops_.size()]; }
  const Op& op(uint64_t number) const { return ops_[number % ops_.size()]; }
  void make_room();
  void issued(const OpInfo& info, uint64_t ticket);
  void use(const char* name, FunctionRef<ncclResult_t()> call, const OpInfo& info);

  NcclRank& rank_;
  ncclComm_t comm_;
  GroupInfo group_;
  std::shared_ptr<CudaStream> stream_;
  bool channel_;
  int record_slot_;  // of a group's collectives its communicator keeps the records
  std::string wait_text_;
  std::function<void(uint64_t)> ended_;
  std::unique_ptr<Event> ready_;
  std::vector<Op> ops_;  // by number
  uint64_t num_messages_ = 0;
  uint64_t num_issued_ = 0;  // these two under lanes_mutex(), except that the issuing thread reads what it wrote
  uint64_t num_ended_ = 0;
  double last_end_seconds_ = 0;
};

double steady_seconds();

template <typename Enqueue>
uint64_t NcclLane::issue(const OpInfo& info, uint64_t ticket, Stream& after, Enqueue&& enqueue) {
  make_room();
  after.record(*ready_);
  stream_->wait(*ready_);
  Op& next = op(num_issued_ + 1);
  stream_->record(*next.start);
  enqueue();
  stream_->record(*next.end);
  issued(info, ticket);
  return num_issued_;
}

template <typename Call>
uint64_t NcclLane::issue_nccl(const OpInfo& info, uint64_t ticket, Stream& after, const char* name, Call&& call) {
  return issue(info, ticket, after, [&] {
    use(
        name, [&] { return call(comm_, stream_->handle()); }, info);
  });
}

ncclDataType_t nccl_type(DType dtype);
ncclRedOp_t nccl_op(ReduceOp op);

}  // namespace ashlar
