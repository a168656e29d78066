// What the two halves of the rules share: ranks in groups, and how messages name them.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cuda/facts.h"

namespace ashlar {

using Ranks = std::vector<const RankFacts*>;

std::string rank_text(const Ranks& ranks);   // "rank 3", "ranks 0-7, 9"
std::string place_text(const Ranks& ranks);  // "host node1 (ranks 0-7)", "hosts node1, node2 (ranks 0-15)"
std::string bytes_text(int64_t bytes);       // "1.5 GB", of 10^9 bytes

// Ranks in groups of equal keys, the groups in ascending order of keys.
template <typename Key>
auto group_by(const Ranks& ranks, Key key) {
  std::map<decltype(key(*ranks.front())), Ranks> groups;
  for (const RankFacts* rank : ranks) {
    groups[key(*rank)].push_back(rank);
  }
  return groups;
}

inline std::pair<std::string, std::string> host_key(const RankFacts& rank) {
  return {rank.host, rank.host_id};
}

// The rules about hosts, processes and NCCL, for ranks that have a GPU (check_host_facts.cpp).
void check_host_facts(const Ranks& ranks, const DeviceJob& job, std::vector<std::string>& problems);
void warn_host_facts(const Ranks& ranks, const DeviceJob& job, std::vector<std::string>& warnings);

}  // namespace ashlar
