// The last operations of every communicator of a rank, where the rank stands, and the deadline of its waits.
#pragma once

namespace ashlar {
class FlightRecorder {
 public:
  void set_timeout(double seconds);
  double timeout_seconds() const;
  // Where the rank stands, shown in every report: its grid coordinate (once), and before each action of a schedule the
  // step and the action's text with its micro-batch ("1F3"). Does not allocate.
  void set_coordinate(const char* text);
  void set_position(long long step, const char* action, int microbatch);
};
}  // namespace ashlar
