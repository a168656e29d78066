#include "runtime/comm/host/status_board.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <thread>

namespace ashlar {

struct StatusBoard::JobEnd {
  enum State : int32_t { kRunning, kBeingWritten, kEnded };
  std::atomic<int32_t> state{kRunning};
  std::atomic<int32_t> world_rank{-1};
  std::atomic<int32_t> code{0};
  SharedText<4096> reason;
};

std::string SharedOp::Value::text() const {
  return kind == OpKind::kNone ? "none" : fmt::format("{} #{}", op_kind_name(kind), number);
}

namespace {

// bytes 36 bits, kind 4, dtype 4, reduction 2, root or tag 18.
constexpr int kBytesBits = 36;
constexpr uint64_t kRootMask = (1u << 18) - 1;

uint64_t pack(const OpInfo& op) {
  return (op.bytes & ((uint64_t{1} << kBytesBits) - 1)) | static_cast<uint64_t>(op.kind) << kBytesBits |
         static_cast<uint64_t>(op.dtype) << (kBytesBits + 4) | static_cast<uint64_t>(op.reduce_op) << (kBytesBits + 8) |
         (static_cast<uint64_t>(op.root) & kRootMask) << (kBytesBits + 10);
}

OpInfo unpack(uint64_t number, uint64_t packed) {
  return {.number = number,
          .bytes = packed & ((uint64_t{1} << kBytesBits) - 1),
          .kind = static_cast<OpKind>(packed >> kBytesBits & 15),
          .dtype = static_cast<DType>(packed >> (kBytesBits + 4) & 15),
          .reduce_op = static_cast<ReduceOp>(packed >> (kBytesBits + 8) & 3),
          .root = static_cast<int32_t>(packed >> (kBytesBits + 10) & kRootMask)};
}

}  // namespace

// Readers that come between the two stores of one issue and see the old number find nothing; a number is only there
// together with its own operation, because it is taken away first.
void SharedIssue::store(const OpInfo& op) {
  number_.store(0);
  packed_.store(pack(op));
  number_.store(op.number);
}

std::optional<OpInfo> SharedIssue::load(uint64_t number) const {
  if (number_.load() != number) {
    return std::nullopt;
  }
  const uint64_t packed = packed_.load();
  return number_.load() == number ? std::optional(unpack(number, packed)) : std::nullopt;
}

OpInfo SharedIssue::shown(const OpInfo& op) {
  return unpack(op.number, pack(op));
}

size_t StatusBoard::region_bytes(int num_ranks) {
  return sizeof(JobEnd) + static_cast<size_t>(num_ranks) * sizeof(RankStatus);
}

StatusBoard::StatusBoard(std::byte* region, int num_ranks, bool initialize)
    : end_(reinterpret_cast<JobEnd*>(region)),
      ranks_(reinterpret_cast<RankStatus*>(region + sizeof(JobEnd))),
      num_ranks_(num_ranks) {
  if (initialize) {
    new (end_) JobEnd;
    for (int rank = 0; rank < num_ranks; ++rank) {
      new (ranks_ + rank) RankStatus;
    }
  }
}

bool StatusBoard::end_job(int world_rank, ErrorCode code, const std::string& reason) {
  int32_t expected = JobEnd::kRunning;
  if (end_->state.compare_exchange_strong(expected, JobEnd::kBeingWritten)) {
    end_->world_rank.store(world_rank);
    end_->code.store(static_cast<int32_t>(code));
    end_->reason.store(reason.c_str());
    end_->state.store(JobEnd::kEnded, std::memory_order_release);
    return true;
  }
  while (!job_ended()) {  // another rank is writing its reason, a few hundred bytes
    std::this_thread::yield();
  }
  return false;
}

bool StatusBoard::job_ended() const {
  return end_->state.load(std::memory_order_acquire) == JobEnd::kEnded;
}

int StatusBoard::ended_by() const {
  return end_->world_rank.load();
}

int StatusBoard::find_dead() const {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const pid_t pid = of(rank).pid.load();
    if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) {
      return rank;
    }
  }
  return -1;
}

ErrorCode StatusBoard::end_code() const {
  return static_cast<ErrorCode>(end_->code.load());
}

std::string StatusBoard::end_reason() const {
  return end_->reason.load();
}

bool StatusBoard::computes(int world_rank) const {
  const RankStatus& status = of(world_rank);
  return status.present.load() && !status.left.load() &&
         std::none_of(std::begin(status.groups), std::end(status.groups), [](const GroupStatus& group) {
           return group.group_id.load() != 0 && (group.current.load().kind != OpKind::kNone || group.under_way());
         });
}

std::string StatusBoard::stand(int world_rank) const {
  const RankStatus& status = of(world_rank);
  if (!status.present.load()) {
    return fmt::format("rank {}: on another host, not visible from here", world_rank);
  }
  const std::string coordinate = status.coordinate.load();
  std::string text = fmt::format("rank {}{}: ", world_rank, coordinate.empty() ? "" : " (" + coordinate + ")");
  if (const int64_t step = status.step.load(); step >= 0) {
    const int64_t microbatch = status.microbatch.load();
    text += fmt::format("step {}, action {}{}; ", step, status.action.load(),
                        microbatch < 0 ? "" : fmt::format(", micro-batch {}", microbatch));
  }
  std::string waits;
  for (const GroupStatus& group : status.groups) {
    const SharedOp::Value current = group.current.load();
    if (group.group_id.load() == 0) {
      continue;
    }
    if (current.kind != OpKind::kNone) {
      waits += fmt::format("{}waits in {} of \"{}\"", waits.empty() ? "" : ", ", current.text(), group.name.load());
    } else if (group.under_way()) {
      waits += fmt::format("{}has started {} of \"{}\" and finished {}", waits.empty() ? "" : ", ",
                           group.last_issued.load().text(), group.name.load(), group.last_finished.load().text());
    }
  }
  text += waits.empty() ? "in no operation" : waits;
  return text + (status.left.load() ? "; has left the job" : "");
}

const GroupStatus* StatusBoard::find_group(int world_rank, uint64_t group_id) const {
  for (const GroupStatus& group : of(world_rank).groups) {
    if (group.group_id.load() == group_id) {
      return &group;
    }
  }
  return nullptr;
}

std::string StatusBoard::last_finished(int world_rank, uint64_t group_id) const {
  const GroupStatus* group = find_group(world_rank, group_id);
  return group == nullptr ? "none" : group->last_finished.load().text();
}

std::string StatusBoard::table() const {
  std::string text = "where everybody stands:";
  for (int rank = 0; rank < num_ranks_; ++rank) {
    text += "\n  " + stand(rank);
  }
  return text;
}

}  // namespace ashlar
