#include "runtime/comm/nccl/nccl_lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "runtime/comm/host/report.h"
#include "runtime/comm/wait_reached.h"

namespace ashlar {

namespace {

constexpr auto kNothingLate = [](double) { return std::string(); };  // of calls that never are ncclInProgress

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    case DType::kU8:
      return ncclUint8;
  }
  throw Error(ErrorCode::kInternal, "no such element type");
}

ncclRedOp_t nccl_op(ReduceOp op) {
  return op == ReduceOp::kSum ? ncclSum : ncclMax;
}

NcclLane::NcclLane(NcclRank& rank, ncclComm_t comm, const GroupInfo& group, std::shared_ptr<CudaStream> stream,
                   std::optional<int> record_slot, std::function<void(uint64_t)> ended)
    : rank_(rank),
      comm_(comm),
      group_(group),
      stream_(std::move(stream)),
      channel_(!record_slot),
      record_slot_(channel_ ? rank.recorder().open_group(group.id, group.name, GroupKind::kChannel) : *record_slot),
      wait_text_(fmt::format("the operations of group \"{}\"", group.name)),
      ended_(std::move(ended)),
      ready_(rank.device().create_event()),
      ops_(channel_ || comm == nullptr ? kMaxMessages : kMaxOps) {
  for (Op& one : ops_) {
    one.start = rank.device().create_event();
    one.end = rank.device().create_event();
  }
  rank_.add_lane(*this);
}

NcclLane::~NcclLane() {
  {
    const std::lock_guard lock(rank_.lanes_mutex());
    abort();  // what an orderly end has left is null
  }
  rank_.remove_lane(*this);
  if (channel_) {
    rank_.recorder().close_group(record_slot_);
  }
}

// The host sees the end of the oldest operation itself, so that its place and its events are free without doubt.
void NcclLane::make_room() {
  check_job_runs(rank_.recorder());
  if (num_issued_ >= ops_.size()) {
    wait_reached(*op(num_issued_ + 1).end, *stream_, rank_.recorder(), wait_text_);
    const std::lock_guard lock(rank_.lanes_mutex());
    advance(steady_seconds());
  }
}

void NcclLane::issued(const OpInfo& info, uint64_t ticket) {
  const std::lock_guard lock(rank_.lanes_mutex());
  Op& next = op(num_issued_ + 1);
  next.info = info;
  next.ticket = ticket;
  next.began_seconds = steady_seconds();
  next.started = false;
  ++num_issued_;
}

void NcclLane::use(const char* name, FunctionRef<ncclResult_t()> call, const OpInfo& info) {
  rank_.call(name, call, comm_, rank_.recorder().timeout_seconds(),
             [&](double waited) { return late_text(rank_.recorder(), group_, info, waited); });
}

uint64_t NcclLane::issue_message(const Transfer& transfer, uint64_t ticket, Stream& after) {
  const OpInfo info{.number = ++num_messages_,
                    .bytes = transfer.data.bytes(),
                    .kind = OpKind::kExchange,
                    .dtype = transfer.data.dtype,
                    .root = transfer.tag};
  rank_.recorder().enter(record_slot_, info);
  if (const auto mismatch = rank_.recorder().find_mismatch(group_.id, group_.world_ranks, info)) {
    rank_.fail(ErrorCode::kCommunication, mismatch_text(group_, info, mismatch->member, mismatch->theirs));
  }
  const auto count = static_cast<size_t>(transfer.data.num_elements());
  const ncclDataType_t type = nccl_type(transfer.data.dtype);
  const int peer = 1 - group_.rank;
  const NcclLibrary& nccl = rank_.nccl();
  if (transfer.direction == Transfer::Direction::kSend) {
    return issue_nccl(info, ticket, after, "ncclSend", [&](ncclComm_t comm, cudaStream_t stream) {
      return nccl.send(transfer.data.data, count, type, peer, comm, stream);
    });
  }
  return issue_nccl(info, ticket, after, "ncclRecv", [&](ncclComm_t comm, cudaStream_t stream) {
    return nccl.receive(transfer.data.data, count, type, peer, comm, stream);
  });
}

void NcclLane::wait(uint64_t number, Stream& stream) {
  if (number + ops_.size() > num_issued_) {  // of an older one the host has seen the end
    stream.wait(*op(number).end);
  }
}

void NcclLane::wait_host(uint64_t number) {
  if (number + ops_.size() <= num_issued_) {
    return;
  }
  wait_reached(*op(number).end, *stream_, rank_.recorder(), wait_text_);
  const std::lock_guard lock(rank_.lanes_mutex());
  advance(steady_seconds());
}

void NcclLane::begin_end() {
  if (comm_ != nullptr) {
    rank_.call(
        "ncclCommFinalize",
        [&] {
          const ncclResult_t result = rank_.nccl().finalize(comm_);
          return result == ncclInProgress ? ncclSuccess : result;  // end() waits
        },
        comm_, 0, kNothingLate);
  }
}

void NcclLane::end() {
  if (comm_ == nullptr) {
    return;
  }
  constexpr double kPatienceSeconds = 20;  // a known place to hang; the work of the job is done
  rank_.call(
      "ncclCommFinalize", [] { return ncclInProgress; }, comm_, kPatienceSeconds,
      [&](double waited) {
        return fmt::format("rank {} waited {:.1f} s for the end of communicator \"{}\" (ncclCommFinalize)",
                           rank_.recorder().world_rank(), waited, group_.name);
      });
  ncclComm_t ending = nullptr;
  {
    const std::lock_guard lock(rank_.lanes_mutex());
    ending = std::exchange(comm_, nullptr);
  }
  const ncclComm_t none = nullptr;
  rank_.call(
      "ncclCommDestroy", [&] { return rank_.nccl().destroy(ending); }, none, 0, kNothingLate);
}

void NcclLane::advance(double now) {
  while (num_ended_ < num_issued_) {
    Op& oldest = op(num_ended_ + 1);
    if (!oldest.started && oldest.start->reached()) {
      oldest.started = true;
      oldest.began_seconds = now;
    }
    if (!oldest.end->reached()) {
      return;
    }
    ++num_ended_;
    last_end_seconds_ = now;
    if (channel_) {
      rank_.recorder().finish(record_slot_, oldest.info);
    }
    ended_(oldest.ticket);
  }
}

std::optional<NcclLane::Oldest> NcclLane::oldest(double now) const {
  if (num_ended_ == num_issued_) {
    return std::nullopt;
  }
  const Op& first = op(num_ended_ + 1);
  return Oldest{.op = first.info,
                .record_slot = record_slot_,
                .waited_seconds = now - std::max(first.began_seconds, last_end_seconds_),
                .started = first.started};
}

std::string NcclLane::async_error() const {
  ncclResult_t error = ncclSuccess;
  if (comm_ == nullptr || rank_.nccl().async_error(comm_, &error) != ncclSuccess || error == ncclSuccess ||
      error == ncclInProgress) {
    return {};
  }
  return fmt::format("{}; {}", rank_.nccl().error_text(error), rank_.nccl().last_error(comm_));
}

void NcclLane::abort() {
  if (comm_ != nullptr) {
    rank_.nccl().abort(std::exchange(comm_, nullptr));
  }
}

}  // namespace ashlar
