// The text of an expired wait: which operation, who came, who did not, and where everybody stands.
#pragma once

#include <span>
#include <string>

#include "runtime/comm/host/host_rank.h"

namespace ashlar {

struct MemberState {
  bool entered = false;  // is in the operation, or past it
  bool arrived = false;  // has done the part that is being waited for
  bool visible = true;   // false: on another host, and nothing is known of it
};

std::string late_collective_text(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op,
                                 double waited_seconds, std::span<const MemberState> members);

// `unfinished` is the first message of the exchange that is not done.
std::string late_exchange_text(FlightRecorder& recorder, const GroupInfo& group, const OpInfo& op,
                               double waited_seconds, const Message& unfinished);

// `theirs` of member `peer` differs from this member's `mine`.
std::string mismatch_text(const GroupInfo& group, const OpInfo& mine, int peer, const OpInfo& theirs);

}  // namespace ashlar
