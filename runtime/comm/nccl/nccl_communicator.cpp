#include "runtime/comm/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <set>
#include <utility>

#include "runtime/comm/host/report.h"
#include "runtime/comm/wait_reached.h"

namespace ashlar {

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclRank> rank, ncclComm_t comm, const GroupInfo& group)
    : Communicator(group.name, group.rank, group.world_ranks, group.id, rank->recorder(), GroupKind::kAsynchronous),
      nccl_rank_(std::move(rank)),
      group_(group),
      num_exceptions_(std::uncaught_exceptions()),
      channels_(group.world_ranks.size()) {
  lanes_.reserve(kMostLanes);
  lanes_.push_back(std::make_unique<NcclLane>(*nccl_rank_, comm, group, nccl_rank_->collective_stream(), record_slot(),
                                              [this](uint64_t ticket) { ended(ticket); }));
  const size_t bytes = 2 * sizeof(int64_t) * (group.world_ranks.size() + 1);
  scratch_ = nccl_rank_->device().allocate(bytes, "scratch of a communicator", MemoryItem::kCommunication);
  host_scratch_ = nccl_rank_->device().allocate_host(bytes, "scratch of a communicator", MemoryItem::kCommunication);
}

// In an orderly end all ranks come here, and end each communicator together. An error leaves without the others.
NcclCommunicator::~NcclCommunicator() {
  if (std::uncaught_exceptions() == num_exceptions_ && !nccl_rank_->board().job_ended()) {
    try {
      for (const auto& lane : lanes_) {
        lane->begin_end();
      }
      for (const auto& lane : lanes_) {
        lane->end();
      }
    } catch (const Error& error) {
      nccl_rank_->log().error("{}", error.what());
    }
  }
  lanes_.clear();
}

// With NCCL_RUNTIME_CONNECT=0 the ways are there since the communicator was made (nccl_world.cpp). An operation shows
// that they work, and has loaded what the first one loads.
void NcclCommunicator::prepare_collectives() {
  barrier();
}

void NcclCommunicator::abort(int exit_status) noexcept {
  nccl_rank_->host_world().abort(exit_status);
}

// Under NcclRank::lanes_mutex().
void NcclCommunicator::ended(uint64_t ticket) {
  Issued& issued = works_[ticket % kMaxWorks];
  if (--issued.remaining == 0) {
    recorder().finish(record_slot(), issued.op);
  }
}

// A place for the operation being carried out; its last user has ended, or the host waits for it.
NcclCommunicator::Issued& NcclCommunicator::start_work(int num_lane_ops) {
  const uint64_t ticket = ++num_works_;
  Issued& issued = works_[ticket % kMaxWorks];
  for (size_t index = 0; index < lanes_.size(); ++index) {
    if (issued.numbers[index] > 0) {
      lanes_[index]->wait_host(issued.numbers[index]);
    }
  }
  const std::lock_guard lock(nccl_rank_->lanes_mutex());
  issued = {.ticket = ticket, .op = current_op(), .remaining = num_lane_ops, .unpaired = 0, .numbers = {}};
  return issued;
}

// The others may have called something else under this number. NCCL would not notice, and hang or mix up data.
void NcclCommunicator::check_alike() {
  if (const auto mismatch = recorder().find_mismatch(group_id(), world_ranks(), current_op())) {
    nccl_rank_->fail(ErrorCode::kCommunication,
                     mismatch_text(group_, current_op(), mismatch->member, mismatch->theirs));
  }
}

template <typename Call>
Work NcclCommunicator::collective(const char* name, Stream& after, Call&& call) {
  check_alike();
  Issued& issued = start_work(1);
  return started(issued, lane().issue_nccl(current_op(), issued.ticket, after, name, call));
}

Work NcclCommunicator::local_copy(std::byte* out, const std::byte* in, size_t bytes, Stream& after) {
  if (out == in || bytes == 0) {
    return {};
  }
  Issued& issued = start_work(1);
  return started(issued,
                 lane().issue(current_op(), issued.ticket, after, [&] { lane().stream().copy(out, in, bytes); }));
}

Work NcclCommunicator::do_all_reduce(TensorView x, ReduceOp op, Stream& after) {
  if (size() == 1) {
    return {};
  }
  return collective("ncclAllReduce", after, [&](ncclComm_t comm, cudaStream_t stream) {
    return nccl_rank_->nccl().all_reduce(x.data, x.data, static_cast<size_t>(x.num_elements()), nccl_type(x.dtype),
                                         nccl_op(op), comm, stream);
  });
}

Work NcclCommunicator::do_all_gather(TensorView out, ConstTensorView in, Stream& after) {
  if (size() == 1) {
    return local_copy(out.data, in.data, in.bytes(), after);
  }
  return collective("ncclAllGather", after, [&](ncclComm_t comm, cudaStream_t stream) {
    return nccl_rank_->nccl().all_gather(in.data, out.data, static_cast<size_t>(in.num_elements()), nccl_type(in.dtype),
                                         comm, stream);
  });
}

Work NcclCommunicator::do_reduce_scatter(TensorView out, ConstTensorView in, ReduceOp op, Stream& after) {
  if (size() == 1) {
    return local_copy(out.data, in.data, in.bytes(), after);
  }
  return collective("ncclReduceScatter", after, [&](ncclComm_t comm, cudaStream_t stream) {
    return nccl_rank_->nccl().reduce_scatter(in.data, out.data, static_cast<size_t>(out.num_elements()),
                                             nccl_type(in.dtype), nccl_op(op), comm, stream);
  });
}

Work NcclCommunicator::do_broadcast(TensorView x, int root, Stream& after) {
  if (size() == 1) {
    return {};
  }
  return collective("ncclBroadcast", after, [&](ncclComm_t comm, cudaStream_t stream) {
    return nccl_rank_->nccl().broadcast(x.data, x.data, static_cast<size_t>(x.num_elements()), nccl_type(x.dtype), root,
                                        comm, stream);
  });
}

void NcclCommunicator::do_barrier() {
  if (size() == 1) {
    return;
  }
  check_alike();
  Issued& issued = start_work(1);
  const uint64_t number = lane().issue_nccl(
      current_op(), issued.ticket, lane().stream(), "ncclAllReduce", [&](ncclComm_t comm, cudaStream_t stream) {
        return nccl_rank_->nccl().all_reduce(scratch_.data(), scratch_.data(), 1, ncclInt64, ncclMax, comm, stream);
      });
  issued.numbers[0] = number;
  lane().wait_host(number);
}

std::unique_ptr<Communicator> NcclCommunicator::do_split(int color, int key, const std::string& name) {
  check_alike();
  std::vector<int64_t> all = {color, key};
  if (size() > 1) {
    const size_t pair_bytes = 2 * sizeof(int64_t);
    std::copy(all.begin(), all.end(), reinterpret_cast<int64_t*>(host_scratch_.data()));
    Issued& issued = start_work(1);
    CudaStream& stream = lane().stream();
    std::byte* const gathered = scratch_.data() + pair_bytes;
    stream.copy(scratch_.data(), host_scratch_.data(), pair_bytes);
    const uint64_t number = lane().issue_nccl(
        current_op(), issued.ticket, stream, "ncclAllGather", [&](ncclComm_t comm, cudaStream_t handle) {
          return nccl_rank_->nccl().all_gather(scratch_.data(), gathered, 2, ncclInt64, comm, handle);
        });
    issued.numbers[0] = number;
    stream.copy(host_scratch_.data() + pair_bytes, gathered, pair_bytes * static_cast<size_t>(size()));
    const auto copied = nccl_rank_->device().create_event();
    stream.record(*copied);
    wait_reached(*copied, stream, recorder(), "the colors of a split");
    lane().wait_host(number);
    all.resize(static_cast<size_t>(size()) * 2);
    std::copy_n(reinterpret_cast<const int64_t*>(host_scratch_.data() + pair_bytes), all.size(), all.begin());
  }
  const Part part = part_of(all, color);
  // A group of one needs no NCCL; where all are, nobody calls it.
  std::set<int64_t> colors;
  bool anyone = false;
  for (size_t member = 0; member < all.size(); member += 2) {
    anyone = anyone || (all[member] >= 0 && !colors.insert(all[member]).second);
  }
  const bool with_others = color >= 0 && part.world_ranks.size() > 1;
  ncclComm_t comm = nullptr;
  if (anyone) {
    comm = split_comm(with_others ? color : NCCL_SPLIT_NOCOLOR, key, name, current_op(), group_);
  }
  if (color < 0) {
    return nullptr;
  }
  return std::make_unique<NcclCommunicator>(
      nccl_rank_, comm,
      GroupInfo{.id = part.group_id, .name = name, .rank = part.rank, .world_ranks = part.world_ranks});
}

ncclComm_t NcclCommunicator::split_comm(int color, int key, const std::string& name, const OpInfo& op,
                                        const GroupInfo& waits_in) {
  ncclConfig_t config = nccl_rank_->config(name);
  ncclComm_t& child = nccl_rank_->new_comm();
  const auto late = [&](double waited) { return late_text(recorder(), waits_in, op, waited); };
  const double timeout = recorder().timeout_seconds();
  // NCCL fills in the child when the parent is out of ncclInProgress; then the child may still be in it.
  const NcclLibrary& nccl = nccl_rank_->nccl();
  try {
    const auto split = [&] { return nccl.split(lane().comm(), color, key, &child, &config); };
    nccl_rank_->call("ncclCommSplit", split, lane().comm(), timeout, late);
    if (child != nullptr) {
      const auto look = [] { return ncclInProgress; };
      nccl_rank_->call("ncclCommSplit", look, child, timeout, late);
    }
  } catch (const Error&) {
    if (child != nullptr) {
      nccl.abort(child);
    }
    throw;
  }
  return child;
}

const NcclCommunicator::Issued& NcclCommunicator::waited_work(uint64_t ticket) const {
  const Issued& issued = works_[ticket % kMaxWorks];
  DCHECK(issued.ticket != ticket || issued.unpaired == 0,
         "a wait for a message of rank {} to itself in group \"{}\", of which only one side was started", rank(),
         name());
  return issued;
}

void NcclCommunicator::wait_host(uint64_t ticket) {
  const Issued& issued = waited_work(ticket);
  for (size_t index = 0; issued.ticket == ticket && index < lanes_.size(); ++index) {
    if (issued.numbers[index] > 0) {
      lanes_[index]->wait_host(issued.numbers[index]);
    }
  }
}

void NcclCommunicator::wait_stream(uint64_t ticket, Stream& stream) {
  const Issued& issued = waited_work(ticket);
  for (size_t index = 0; issued.ticket == ticket && index < lanes_.size(); ++index) {
    if (issued.numbers[index] > 0) {
      lanes_[index]->wait(issued.numbers[index], stream);
    }
  }
}

}  // namespace ashlar
