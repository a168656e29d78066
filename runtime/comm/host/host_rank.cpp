#include "runtime/comm/host/host_rank.h"

#include <fmt/format.h>

#include <numeric>

namespace ashlar {

GroupInfo world_group(int world_rank, int world_size) {
  GroupInfo group{.id = 1, .name = "world", .rank = world_rank, .world_ranks = {}};
  group.world_ranks.resize(static_cast<size_t>(world_size));
  std::iota(group.world_ranks.begin(), group.world_ranks.end(), 0);
  return group;
}

// A killed rank never arrives, and mpirun only asks its peers to end (they may take TERM as "finish the step first").
void HostRank::check_peers_live() {
  if (const int dead = board().find_dead(); dead >= 0) {
    fail(ErrorCode::kCommunication,
         fmt::format("the process of rank {} is gone; it was last seen as {}", dead, board().stand(dead)));
  }
}

void HostRank::fail(ErrorCode code, const std::string& text) {
  if (!board().end_job(recorder_.world_rank(), code, text)) {
    check_job_runs();  // another rank came to a report at the same time: one is enough
  }
  throw Error(code, text);
}

}  // namespace ashlar
