// The one catch of a program: what a rank does with an error that reached the top.
#pragma once

#include <functional>

#include "runtime/comm/host/host_rank.h"
#include "runtime/comm/launch.h"

namespace ashlar {

struct Outcome {
  int exit_status = 0;
  bool orderly = true;        // all ranks end alike; otherwise this rank failed on its own or was stopped by another
  bool peers_report = false;  // the peers print where they stand before the job is gone
};

// Runs `body`, then meets all other ranks, so that none leaves while others still need it. Never throws.
Outcome run_body(HostRank& rank, RankContext& context, const std::function<int(RankContext&)>& body);

}  // namespace ashlar
