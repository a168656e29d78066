// Looks at what is under way on the device, in a thread of its own, and ends the job when it fails or comes to nothing.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/base/error.h"

namespace ashlar {

class NcclLane;
class NcclRank;

class NcclWatchdog {
 public:
  explicit NcclWatchdog(NcclRank& rank);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

 private:
  struct Failure {
    ErrorCode code = ErrorCode::kCommunication;
    std::string text;
  };

  void run();
  bool sleep(double seconds);  // false: this object is about to go
  std::optional<Failure> look(double now);
  std::optional<Failure> look_at_lanes(double now);
  std::string under_way(double now) const;
  void leave();  // the job is over: nothing may wait any more, and this process must end

  NcclRank& rank_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  double next_life_check_seconds_ = 0;
  std::thread thread_;
};

}  // namespace ashlar
