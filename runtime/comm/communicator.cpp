#include "runtime/comm/communicator.h"

#include <algorithm>
#include <utility>

namespace ashlar {

// A number for a new group that all its members compute alike and no other group has (up to hashing): from the parent,
// the split's place among the parent's operations, and the color.
uint64_t child_group_id(uint64_t parent, uint64_t op_number, int color) {
  uint64_t hash = parent;
  for (const uint64_t value : {op_number, static_cast<uint64_t>(color)}) {
    hash = (hash + value + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 31;
  }
  return hash | 1;
}

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
  template <typename Result>
  Result finished(Result result) {
    comm_.recorder_.finish(comm_.record_slot_, comm_.current_op_);
    return result;
  }
  Work started(Work work) { return work.done() ? finished(work) : work; }

 private:
  Communicator& comm_;
};

Communicator::Communicator(std::string name, int rank, std::vector<int> world_ranks, uint64_t group_id,
                           FlightRecorder& recorder, GroupKind kind)
    : name_(std::move(name)),
      rank_(rank),
      world_ranks_(std::move(world_ranks)),
      group_id_(group_id),
      recorder_(recorder),
      record_slot_(recorder.open_group(group_id, name_, kind)) {}

Communicator::~Communicator() {
  recorder_.close_group(record_slot_);
}

Work Communicator::all_reduce(TensorView x, ReduceOp op, Stream& after) {
  Recorded recorded(*this, {.bytes = x.bytes(), .kind = OpKind::kAllReduce, .dtype = x.dtype, .reduce_op = op},
                    x.bytes());
  return recorded.started(do_all_reduce(x, op, after));
}

Work Communicator::all_gather(TensorView out, ConstTensorView in, Stream& after) {
  DCHECK(out.dtype == in.dtype && out.num_elements() == size() * in.num_elements(),
         "all_gather of {} {} into {} {} on {} ranks of group \"{}\"", in.shape.text(), dtype_name(in.dtype),
         out.shape.text(), dtype_name(out.dtype), size(), name_);
  Recorded recorded(*this, {.bytes = in.bytes(), .kind = OpKind::kAllGather, .dtype = in.dtype}, in.bytes());
  return recorded.started(do_all_gather(out, in, after));
}

Work Communicator::reduce_scatter(TensorView out, ConstTensorView in, ReduceOp op, Stream& after) {
  DCHECK(out.dtype == in.dtype && in.num_elements() == size() * out.num_elements(),
         "reduce_scatter of {} {} into {} {} on {} ranks of group \"{}\"", in.shape.text(), dtype_name(in.dtype),
         out.shape.text(), dtype_name(out.dtype), size(), name_);
  Recorded recorded(*this, {.bytes = in.bytes(), .kind = OpKind::kReduceScatter, .dtype = in.dtype, .reduce_op = op},
                    in.bytes());
  return recorded.started(do_reduce_scatter(out, in, op, after));
}

Work Communicator::broadcast(TensorView x, int root, Stream& after) {
  DCHECK(0 <= root && root < size(), "broadcast from rank {} of {} in group \"{}\"", root, size(), name_);
  Recorded recorded(*this, {.bytes = x.bytes(), .kind = OpKind::kBroadcast, .dtype = x.dtype, .root = root},
                    rank_ == root ? x.bytes() : 0);
  return recorded.started(do_broadcast(x, root, after));
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
  return recorded.started(do_exchange(transfers, after));
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

Communicator::Part Communicator::part_of(std::span<const int64_t> colors_and_keys, int color) const {
  std::vector<std::pair<int64_t, int>> members;  // key, rank here
  for (int member = 0; member < size(); ++member) {
    if (colors_and_keys[static_cast<size_t>(member) * 2] == color) {
      members.emplace_back(colors_and_keys[static_cast<size_t>(member) * 2 + 1], member);
    }
  }
  std::sort(members.begin(), members.end());
  Part part{.group_id = child_group_id(group_id_, current_op_.number, color), .rank = 0, .world_ranks = {}};
  for (const auto& [key, member] : members) {
    if (member == rank_) {
      part.rank = static_cast<int>(part.world_ranks.size());
    }
    part.world_ranks.push_back(world_ranks_[static_cast<size_t>(member)]);
  }
  return part;
}

int64_t Communicator::num_ops(OpKind kind) const {
  return num_ops_[static_cast<size_t>(kind)];
}

int64_t Communicator::bytes_sent(OpKind kind) const {
  return bytes_sent_[static_cast<size_t>(kind)];
}

}  // namespace ashlar
