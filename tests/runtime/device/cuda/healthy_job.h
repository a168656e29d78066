// The facts of a job that may start, for tests that break one of them.
#pragma once

#include <fmt/format.h>

#include <vector>

#include "runtime/device/cuda/facts.h"

namespace ashlar {

// A healthy job: `num_hosts` hosts of two A100, one rank a GPU.
inline std::vector<RankFacts> healthy(int num_hosts = 2) {
  std::vector<RankFacts> ranks;
  for (int rank = 0; rank < 2 * num_hosts; ++rank) {
    RankFacts facts;
    facts.world_rank = rank;
    facts.host_rank = rank % 2;
    facts.host = fmt::format("node{}", rank / 2);
    facts.host_id = fmt::format("boot-{}", rank / 2);
    facts.runtime_version = 13000;
    facts.driver_version = 13000;
    facts.num_visible = 2;
    facts.visible_devices = "unset";
    facts.environment = {{"NCCL_ALGO", "Ring"}, {"OMP_NUM_THREADS", "4"}};
    facts.built_for = {"sm_80", "sm_90a", "compute_80"};
    facts.device_index = rank % 2;
    facts.name = "NVIDIA A100-SXM4-80GB";
    facts.uuid = fmt::format("GPU-0000000{}", rank);
    facts.pci_id = fmt::format("0000:{}b:00.0", rank % 2 + 1);
    facts.memory_bytes = int64_t{80} << 30;
    facts.compute_major = 8;
    facts.compute_minor = 0;
    facts.free_bytes = int64_t{79} << 30;
    facts.nccl_header = 22803;
    facts.nccl_library = 22809;
    facts.build = "0123";
    facts.cpus = {0, 1, 2, 3, 4, 5, 6, 7};
    facts.shared_bytes = int64_t{16} << 30;
    facts.has_infiniband = true;
    facts.interfaces = {"eth0"};
    ranks.push_back(facts);
  }
  return ranks;
}

inline void take_gpu(RankFacts& rank) {
  rank.device_index = -1;
  rank.name = rank.uuid = rank.pci_id = "";
  rank.memory_bytes = rank.compute_major = rank.compute_minor = 0;
}

}  // namespace ashlar
