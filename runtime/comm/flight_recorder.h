// The last operations of every communicator of a rank, where the rank stands, and the deadline of its waits. What
// others need in order to say who is missing is also published on the status board, which all ranks of one host can
// read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/comm/op_info.h"

namespace ashlar {

class StatusBoard;

// One entry of a ring. Times are seconds since the recorder was made.
struct OpRecord {
  OpInfo op;
  bool finished = false;
  double entered_seconds = 0;
  double finished_seconds = 0;
  int64_t step = -1;
  int microbatch = -1;
  std::array<char, 16> action{};
};

// How a group's operations end. In a blocking group the host waits in each of them (in an exchange: later). In an
// asynchronous one they end on the device, which whoever watches it tells the recorder, from any thread. A channel is
// the way from one rank to one other; its exchanges are numbered alike on both ends.
enum class GroupKind { kBlocking, kAsynchronous, kChannel };

// Safe to use from several threads: the one that runs the rank, and a watchdog.
class FlightRecorder {
 public:
  static constexpr size_t kRingLength = 64;
  static constexpr double kDefaultTimeoutSeconds = 600;

  FlightRecorder(StatusBoard& board, int world_rank);
  ~FlightRecorder();

  void set_timeout(double seconds);
  double timeout_seconds() const { return timeout_seconds_; }
  // Where the rank stands, shown in every report: its grid coordinate (once), and before each action of a schedule the
  // step and the action's text with its micro-batch ("1F3"). Does not allocate.
  void set_coordinate(const char* text);
  void set_position(long long step, const char* action, int microbatch);

  // For communicators. A slot is a ring of fixed memory, taken at the start of a group and given back at its end.
  int open_group(uint64_t group_id, const std::string& name, GroupKind kind);
  void close_group(int slot);
  void enter(int slot, const OpInfo& op);        // does not allocate
  void finish(int slot, const OpInfo& op);       // does not allocate
  void wait_begins(int slot, const OpInfo& op);  // the host now waits for this exchange; does not allocate
  std::optional<OpRecord> find(int slot, OpKind kind, uint64_t number) const;

  // Of an asynchronous group or channel: a member that has started another operation under the same number, as far as
  // the status board shows it. Does not allocate.
  struct Mismatch {
    int member = 0;  // index in world_ranks
    OpInfo theirs;
  };
  std::optional<Mismatch> find_mismatch(uint64_t group_id, std::span<const int> world_ranks, const OpInfo& op) const;

  // Steady-clock seconds at which the last operation of any group ended: a host that waits for its device waits as long
  // as there is progress.
  double last_progress_seconds() const { return last_progress_seconds_.load(); }

  // Blocks nothing. The last `num_last` operations of every live communicator, oldest first, one a line.
  std::string dump(size_t num_last = kRingLength) const;

  // Ends the job for all ranks, unless another has; its reason then stands.
  void end_job(ErrorCode code, const std::string& reason);

  StatusBoard& board() const { return board_; }
  int world_rank() const { return world_rank_; }

 private:
  struct Group {
    bool open = false;
    GroupKind kind = GroupKind::kBlocking;
    std::string name;
    uint64_t num_records = 0;
    std::array<OpRecord, kRingLength> ring;
  };

  static bool numbered_alike(const Group& group, const OpInfo& op);
  double seconds_now() const;

  StatusBoard& board_;
  int world_rank_;
  std::atomic<double> timeout_seconds_{kDefaultTimeoutSeconds};
  double start_seconds_;
  std::atomic<double> last_progress_seconds_;
  mutable std::mutex mutex_;  // of all below
  int64_t step_ = -1;
  int microbatch_ = -1;
  std::array<char, 16> action_{};
  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace ashlar
