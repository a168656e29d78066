#include "runtime/comm/communicator.h"

#include <utility>

#include "runtime/comm/flight_recorder.h"

namespace ashlar {

void Work::wait(Stream& stream) {
  if (comm_ != nullptr) {
    comm_->wait_stream(ticket_, stream);
  }
}

void Work::wait_host() {
  if (comm_ != nullptr) {
    comm_->wait_host(ticket_);
  }
}

// Numbers, counts and records one operation. When the operation throws, its record stays "entered": that is what a
// report shows.
class Communicator::Recorded {
 public:
  Recorded(Communicator& comm, OpInfo op, size_t bytes_sent) : comm_(comm) {
    op.number = op.kind == OpKind::kExchange ? ++comm.num_exchanges_ : ++comm.num_collectives_;
    comm.current_op_ = op;
    ++comm.num_ops_[static_cast<size_t>(op.kind)];
    comm.bytes_sent_[static_cast<size_t>(op.kind)] += static_cast<int64_t>(bytes_sent);
    comm.recorder_.enter(comm.record_slot_, op);
  }
  // Only a collective is over when the call returns; an exchange is when its work has been waited on.
  template <typename Result>
  Result finished(Result result) {
    comm_.recorder_.finish(comm_.record_slot_, comm_.current_op_);
    return result;
  }

 private:
  Communicator& comm_;
};

Communicator::Communicator(std::string name, int rank, std::vector<int> world_ranks, uint64_t group_id,
                           FlightRecorder& recorder)
    : name_(std::move(name)),
      rank_(rank),
      world_ranks_(std::move(world_ranks)),
      group_id_(group_id),
      recorder_(recorder),
      record_slot_(recorder.open_group(group_id, name_)) {}

Communicator::~Communicator() {
  recorder_.close_group(record_slot_);
}

Work Communicator::all_reduce(TensorView x, ReduceOp op, Stream& after) {
  Recorded recorded(*this, {.bytes = x.bytes(), .kind = OpKind::kAllReduce, .dtype = x.dtype, .reduce_op = op},
                    x.bytes());
  return recorded.finished(do_all_reduce(x, op, after));
}

Work Communicator::all_gather(TensorView out, ConstTensorView in, Stream& after) {
  DCHECK(out.dtype == in.dtype && out.num_elements() == size() * in.num_elements(),
         "all_gather of {} {} into {} {} on {} ranks of group \"{}\"", in.shape.text(), dtype_name(in.dtype),
         out.shape.text(), dtype_name(out.dtype), size(), name_);
  Recorded recorded(*this, {.bytes = in.bytes(), .kind = OpKind::kAllGather, .dtype = in.dtype}, in.bytes());
  return recorded.finished(do_all_gather(out, in, after));
}

Work Communicator::reduce_scatter(TensorView out, ConstTensorView in, ReduceOp op, Stream& after) {
  DCHECK(out.dtype == in.dtype && in.num_elements() == size() * out.num_elements(),
         "reduce_scatter of {} {} into {} {} on {} ranks of group \"{}\"", in.shape.text(), dtype_name(in.dtype),
         out.shape.text(), dtype_name(out.dtype), size(), name_);
  Recorded recorded(*this, {.bytes = in.bytes(), .kind = OpKind::kReduceScatter, .dtype = in.dtype, .reduce_op = op},
                    in.bytes());
  return recorded.finished(do_reduce_scatter(out, in, op, after));
}

Work Communicator::broadcast(TensorView x, int root, Stream& after) {
  DCHECK(0 <= root && root < size(), "broadcast from rank {} of {} in group \"{}\"", root, size(), name_);
  Recorded recorded(*this, {.bytes = x.bytes(), .kind = OpKind::kBroadcast, .dtype = x.dtype, .root = root},
                    rank_ == root ? x.bytes() : 0);
  return recorded.finished(do_broadcast(x, root, after));
}

Work Communicator::exchange(std::span<const Transfer> transfers, Stream& after) {
  size_t bytes = 0;
  size_t bytes_sent = 0;
  for (const Transfer& transfer : transfers) {
    DCHECK(0 <= transfer.peer && transfer.peer < size() && transfer.tag >= 0,
           "exchange with rank {} of {}, tag {}, in group \"{}\"", transfer.peer, size(), transfer.tag, name_);
    bytes += transfer.data.bytes();
    bytes_sent += transfer.direction == Transfer::Direction::kSend ? transfer.data.bytes() : 0;
  }
  const DType dtype = transfers.empty() ? DType::kU8 : transfers.front().data.dtype;
  Recorded recorded(*this, {.bytes = bytes, .kind = OpKind::kExchange, .dtype = dtype}, bytes_sent);
  return do_exchange(transfers, after);
}

void Communicator::barrier() {
  Recorded recorded(*this, {.kind = OpKind::kBarrier}, 0);
  do_barrier();
  recorded.finished(0);
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, const std::string& name) {
  Recorded recorded(*this, {.kind = OpKind::kSplit}, 0);
  return recorded.finished(do_split(color, key, name));
}

int64_t Communicator::num_ops(OpKind kind) const {
  return num_ops_[static_cast<size_t>(kind)];
}

int64_t Communicator::bytes_sent(OpKind kind) const {
  return bytes_sent_[static_cast<size_t>(kind)];
}

}  // namespace ashlar
