#include "runtime/comm/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>

#include "runtime/base/error.h"
#include "runtime/comm/host/status_board.h"

namespace ashlar {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

FlightRecorder::FlightRecorder(StatusBoard& board, int world_rank)
    : board_(board), world_rank_(world_rank), start_seconds_(steady_seconds()), last_progress_seconds_(start_seconds_) {
  board_.mine(world_rank_).present.store(true);
}

FlightRecorder::~FlightRecorder() = default;

double FlightRecorder::seconds_now() const {
  return steady_seconds() - start_seconds_;
}

void FlightRecorder::set_timeout(double seconds) {
  REQUIRE(seconds > 0, ErrorCode::kUsage, "--distributed-timeout-minutes: a time above 0 is needed, not {} seconds",
          seconds);
  timeout_seconds_ = seconds;
}

void FlightRecorder::set_coordinate(const char* text) {
  board_.mine(world_rank_).coordinate.store(text);
}

void FlightRecorder::set_position(long long step, const char* action, int microbatch) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  microbatch_ = microbatch;
  std::strncpy(action_.data(), action, action_.size() - 1);
  RankStatus& status = board_.mine(world_rank_);
  status.step.store(step, std::memory_order_relaxed);
  status.microbatch.store(microbatch, std::memory_order_relaxed);
  status.action.store(action);
}

int FlightRecorder::open_group(uint64_t group_id, const std::string& name, GroupKind kind) {
  const std::lock_guard lock(mutex_);
  auto free = std::find_if(groups_.begin(), groups_.end(), [](const auto& group) { return !group->open; });
  if (free == groups_.end()) {
    DCHECK(groups_.size() < RankStatus::kMaxGroups, "rank {} holds {} communicators and opens \"{}\"", world_rank_,
           groups_.size(), name);
    groups_.push_back(std::make_unique<Group>());
    free = std::prev(groups_.end());
  }
  Group& group = **free;
  group.open = true;
  group.kind = kind;
  group.name = name;
  group.num_records = 0;
  const auto slot = free - groups_.begin();
  GroupStatus& status = board_.mine(world_rank_).groups[static_cast<size_t>(slot)];
  status.name.store(name.c_str());
  status.asynchronous.store(kind != GroupKind::kBlocking);
  status.current.store({});
  status.last_issued.store({});
  status.last_finished.store({});
  for (SharedIssue& issue : status.issues) {
    issue.store({});
  }
  status.group_id.store(group_id);
  return static_cast<int>(slot);
}

void FlightRecorder::close_group(int slot) {
  const std::lock_guard lock(mutex_);
  groups_[static_cast<size_t>(slot)]->open = false;
  board_.mine(world_rank_).groups[static_cast<size_t>(slot)].group_id.store(0);
}

void FlightRecorder::enter(int slot, const OpInfo& op) {
  const std::lock_guard lock(mutex_);
  Group& group = *groups_[static_cast<size_t>(slot)];
  OpRecord& record = group.ring[group.num_records++ % kRingLength];
  record = {.op = op,
            .finished = false,
            .entered_seconds = seconds_now(),
            .finished_seconds = 0,
            .step = step_,
            .microbatch = microbatch_,
            .action = action_};
  if (group.kind == GroupKind::kBlocking) {
    if (op.kind != OpKind::kExchange) {
      wait_begins(slot, op);
    }
  } else if (numbered_alike(group, op)) {
    GroupStatus& status = board_.mine(world_rank_).groups[static_cast<size_t>(slot)];
    status.issues[op.number % GroupStatus::kNumIssues].store(op);
    status.last_issued.store({op.kind, op.number});
  }
}

// Exchanges of a group have another number on every rank, so others can make nothing of them; channels say it instead.
bool FlightRecorder::numbered_alike(const Group& group, const OpInfo& op) {
  return group.kind == GroupKind::kChannel || op.kind != OpKind::kExchange;
}

void FlightRecorder::wait_begins(int slot, const OpInfo& op) {
  board_.mine(world_rank_).groups[static_cast<size_t>(slot)].current.store({op.kind, op.number});
}

void FlightRecorder::finish(int slot, const OpInfo& op) {
  const std::lock_guard lock(mutex_);
  Group& group = *groups_[static_cast<size_t>(slot)];
  const uint64_t oldest = group.num_records > kRingLength ? group.num_records - kRingLength : 0;
  for (uint64_t index = group.num_records; index-- > oldest;) {
    OpRecord& record = group.ring[index % kRingLength];
    if (record.op.number == op.number && record.op.kind == op.kind) {
      record.finished = true;
      record.finished_seconds = seconds_now();
      break;
    }
  }
  last_progress_seconds_.store(steady_seconds());
  GroupStatus& status = board_.mine(world_rank_).groups[static_cast<size_t>(slot)];
  if (group.kind == GroupKind::kBlocking || numbered_alike(group, op)) {
    status.current.store({});
    status.last_finished.store({op.kind, op.number});
  }
}

std::optional<OpRecord> FlightRecorder::find(int slot, OpKind kind, uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const Group& group = *groups_[static_cast<size_t>(slot)];
  for (const OpRecord& record : group.ring) {
    if (record.op.number == number && record.op.kind == kind) {
      return record;
    }
  }
  return std::nullopt;
}

std::optional<FlightRecorder::Mismatch> FlightRecorder::find_mismatch(uint64_t group_id,
                                                                      std::span<const int> world_ranks,
                                                                      const OpInfo& op) const {
  for (size_t member = 0; member < world_ranks.size(); ++member) {
    const GroupStatus* status = board_.find_group(world_ranks[member], group_id);
    if (status == nullptr) {
      continue;
    }
    const auto theirs = status->issues[op.number % GroupStatus::kNumIssues].load(op.number);
    if (theirs && *theirs != SharedIssue::shown(op)) {
      return Mismatch{static_cast<int>(member), *theirs};
    }
  }
  return std::nullopt;
}

void FlightRecorder::end_job(ErrorCode code, const std::string& reason) {
  board_.end_job(world_rank_, code, reason);
}

std::string FlightRecorder::dump(size_t num_last) const {
  const std::lock_guard lock(mutex_);
  std::string text = fmt::format("flight recorder of rank {}: the last operations of each group", world_rank_);
  for (const auto& group : groups_) {
    if (group->num_records == 0) {
      continue;
    }
    // Groups that were closed count too: the error that leads here has unwound the objects that held them.
    text += fmt::format("\n  group \"{}\"{}", group->name, group->open ? "" : " (closed)");
    const uint64_t num = std::min<uint64_t>({group->num_records, num_last, kRingLength});
    for (uint64_t index = group->num_records - num; index < group->num_records; ++index) {
      const OpRecord& record = group->ring[index % kRingLength];
      text += fmt::format("\n    {:10.3f} s  {}, {}", record.entered_seconds, record.op.text(),
                          record.finished
                              ? fmt::format("finished after {:.6f} s", record.finished_seconds - record.entered_seconds)
                              : "NOT FINISHED");
      if (record.step >= 0) {
        text += fmt::format(", step {}, action {}{}", record.step, record.action.data(),
                            record.microbatch < 0 ? "" : fmt::format(", micro-batch {}", record.microbatch));
      }
    }
  }
  return text;
}

}  // namespace ashlar
