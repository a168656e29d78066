// Starts a test's body on ranks. Every wait of every rank has a deadline, so a test that would hang fails with a report
// of who is missing.
#pragma once

#include <functional>

#include "runtime/comm/launch.h"

namespace ashlar {

// `body` on `num_ranks` threads; an error of any of them is rethrown here.
inline void run_ranks(int num_ranks, const std::function<void(RankContext&)>& body, ThreadRankOptions options = {}) {
  run_thread_ranks(num_ranks, body, options);
}

// The same with streams whose work runs later, on worker threads: what is not ordered by streams or works goes wrong.
inline void run_ranks_queued(int num_ranks, const std::function<void(RankContext&)>& body) {
  run_thread_ranks(num_ranks, body, {.queued_streams = true});
}

}  // namespace ashlar
