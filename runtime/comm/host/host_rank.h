// One rank of a world in host memory: how it makes groups, how it waits, and how it gives up. Threads and MPI implement
// the virtual part; everything above is common.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/flight_recorder.h"
#include "runtime/comm/host/messenger.h"
#include "runtime/comm/host/rounds.h"
#include "runtime/comm/host/status_board.h"
#include "runtime/comm/wait_reached.h"

namespace ashlar {

struct GroupInfo {
  uint64_t id = 0;
  std::string name;
  int rank = 0;                  // of this member in the group
  std::vector<int> world_ranks;  // of all members

  int size() const { return static_cast<int>(world_ranks.size()); }
};

// The group of all ranks.
GroupInfo world_group(int world_rank, int world_size);

struct GroupParts {
  std::unique_ptr<Rounds> rounds;  // nullptr for a group of one
  std::unique_ptr<Messenger> messenger;
};

class HostRank {
 public:
  explicit HostRank(FlightRecorder& recorder) : recorder_(recorder) {}
  virtual ~HostRank() = default;
  HostRank(const HostRank&) = delete;
  HostRank& operator=(const HostRank&) = delete;

  // Collective among the members.
  virtual GroupParts make_group(const GroupInfo& group) = 0;
  // Moves messages on; called in every wait, so that a rank that waits for one thing serves the others.
  virtual void progress() = 0;
  virtual void abort(int exit_status) noexcept = 0;

  FlightRecorder& recorder() { return recorder_; }
  StatusBoard& board() { return recorder_.board(); }

  // Blocks the host until ready(). Throws when the job was ended by another rank, and Error(kTimeout) with the text of
  // late(seconds waited) at the deadline.
  template <typename Ready, typename Late>
  void wait_until(Ready&& ready, Late&& late);

  // Throws when another rank has ended the job.
  void check_job_runs() { ashlar::check_job_runs(recorder_); }

  // Ends the job for all ranks and throws.
  [[noreturn]] void fail(ErrorCode code, const std::string& text);

 private:
  void check_peers_live();

  FlightRecorder& recorder_;
};

template <typename Ready, typename Late>
void HostRank::wait_until(Ready&& ready, Late&& late) {
  // First short looks, since peers on other cores are usually less than a chunk behind. Then the core is offered to
  // other ranks at each look (8 ranks may share 2 cores). Long waits, such as pipeline bubbles, sleep between looks.
  constexpr int kLooks = 64;
  constexpr double kYieldSeconds = 1e-3;
  constexpr std::chrono::microseconds kSleep(100);
  constexpr double kLifeCheckSeconds = 0.5;
  double next_life_check = kLifeCheckSeconds;
  for (int look = 0; look < kLooks; ++look) {
    if (ready()) {
      return;
    }
  }
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    progress();
    if (ready()) {
      return;
    }
    check_job_runs();
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (waited > recorder_.timeout_seconds()) {
      fail(ErrorCode::kTimeout, late(waited));
    }
    if (waited > next_life_check) {
      check_peers_live();
      next_life_check = waited + kLifeCheckSeconds;
    }
    if (waited < kYieldSeconds) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

}  // namespace ashlar
