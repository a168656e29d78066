// The rules about hosts, processes and NCCL.
#include <algorithm>
#include <set>

#include "runtime/base/error.h"
#include "runtime/device/cuda/check_facts.h"

namespace ashlar {
namespace {

// Which GPU a launcher shows a rank differs by intent; the others below name network devices, which hosts name alike
// only by luck, so they are compared within a host.
const std::set<std::string, std::less<>> kOwnOfEachRank = {"CUDA_VISIBLE_DEVICES"};
const std::set<std::string, std::less<>> kOwnOfEachHost = {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_TOPO_FILE",
                                                           "UCX_NET_DEVICES"};

void compare_variable(const std::string& variable, const Ranks& ranks, std::vector<std::string>& problems) {
  const auto values = group_by(ranks, [&](const RankFacts& rank) {
    const auto found = rank.environment.find(variable);
    return found == rank.environment.end() ? std::string("unset") : fmt::format("'{}'", found->second);
  });
  if (values.size() < 2) {
    return;
  }
  std::string text;
  for (const auto& [value, owners] : values) {
    text += fmt::format("{}{} on {}", text.empty() ? "" : ", ", value, rank_text(owners));
  }
  problems.push_back(
      fmt::format("the environment differs between ranks: {} is {}. mpirun hands variables to other hosts "
                  "only when told: add -x {}, or unset it everywhere",
                  variable, text, variable));
}

void check_environment(const Ranks& ranks, std::vector<std::string>& problems) {
  std::set<std::string> variables;
  for (const RankFacts* rank : ranks) {
    for (const auto& [variable, value] : rank->environment) {
      variables.insert(variable);
    }
  }
  for (const std::string& variable : variables) {
    if (kOwnOfEachHost.contains(variable)) {
      for (const auto& [host, owners] : group_by(ranks, [](const RankFacts& rank) { return rank.host_id; })) {
        compare_variable(variable, owners, problems);
      }
    } else if (!kOwnOfEachRank.contains(variable)) {
      compare_variable(variable, ranks, problems);
    }
  }
}

constexpr int kOldest = 21900;  // 2.19: ncclCommSplit and a configuration with names

// "2.28.9"; NCCL before 2.9 counted otherwise, and is refused whatever it calls itself.
std::string nccl_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

// One cause, one message: a rank whose library fails is not compared with the others.
void check_nccl(const Ranks& all, std::vector<std::string>& problems) {
  Ranks ranks;
  std::copy_if(all.begin(), all.end(), std::back_inserter(ranks),
               [](const RankFacts* rank) { return rank->device_index >= 0; });
  for (const auto& [failure, owners] : group_by(ranks, [](const RankFacts& rank) { return rank.nccl_failure; })) {
    if (!failure.empty()) {
      problems.push_back(fmt::format("{}: {}", place_text(owners), failure));
    }
  }
  std::erase_if(ranks, [](const RankFacts* rank) { return !rank->nccl_failure.empty(); });
  if (ranks.empty()) {
    return;
  }
  for (const auto& [versions, owners] :
       group_by(ranks, [](const RankFacts& rank) { return std::pair(rank.nccl_header, rank.nccl_library); })) {
    const auto [header, library] = versions;
    const std::string place = place_text(owners);
    if (header == 0) {
      problems.push_back(
          fmt::format("{}: this program was built without NCCL. Install libnccl-dev, configure again and "
                      "build, or give --distributed-backend staged",
                      place));
    } else if (library < kOldest) {
      problems.push_back(
          fmt::format("{}: NCCL {} was loaded, and this program needs {} or newer. Install it, or put its "
                      "directory first in LD_LIBRARY_PATH",
                      place, nccl_text(library), nccl_text(kOldest)));
    } else if (library / 100 < header / 100) {
      problems.push_back(
          fmt::format("{}: NCCL {} was loaded, and this program was compiled with the header of {}. Put the "
                      "directory of NCCL {} first in LD_LIBRARY_PATH (with mpirun, add -x LD_LIBRARY_PATH), "
                      "or build again",
                      place, nccl_text(library), nccl_text(header), nccl_text(header)));
    }
  }
  const auto libraries = group_by(ranks, [](const RankFacts& rank) { return rank.nccl_library; });
  if (libraries.size() > 1) {
    std::string table;
    for (const auto& [version, owners] : libraries) {
      table += fmt::format("{}NCCL {} on {}", table.empty() ? "" : ", ", nccl_text(version), place_text(owners));
    }
    problems.push_back(
        fmt::format("the ranks have loaded different versions of NCCL: {}. Install the same one on all "
                    "hosts, and check LD_LIBRARY_PATH (with mpirun, add -x LD_LIBRARY_PATH)",
                    table));
  }
}

void check_builds(const Ranks& ranks, std::vector<std::string>& problems) {
  const auto builds = group_by(ranks, [](const RankFacts& rank) { return rank.build; });
  if (builds.size() > 1) {
    std::string table;
    for (const auto& [build, owners] : builds) {
      table += fmt::format("{}build {} on {}", table.empty() ? "" : ", ", build, place_text(owners));
    }
    problems.push_back(
        fmt::format("the ranks run different builds of this program: {}. Copy one file to all hosts", table));
  }
}

// What NCCL asks of a host and reports late and darkly when it does not get it.
void check_limits(const Ranks& ranks, std::vector<std::string>& problems) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  constexpr int64_t kLockedBytes = 64 * kMiB;
  constexpr int64_t kSharedBytesOfRank = 64 * kMiB;
  constexpr int64_t kOpenFiles = 65536;
  constexpr size_t kManyRanks = 64;
  constexpr int kStackSafeNccl = 22800;
  const auto hosts = group_by(ranks, host_key);
  for (const auto& [host, on_host] : hosts) {
    const RankFacts& first = *on_host.front();
    const std::string place = place_text(on_host);
    if (hosts.size() > 1 && first.has_infiniband && first.locked_bytes >= 0 && first.locked_bytes < kLockedBytes) {
      problems.push_back(
          fmt::format("{}: a process may lock {} of memory, and InfiniBand needs {} or more (NCCL would "
                      "say \"Call to ibv_reg_mr failed\"). Raise it: ulimit -l unlimited, or memlock in "
                      "/etc/security/limits.conf",
                      place, bytes_text(first.locked_bytes), bytes_text(kLockedBytes)));
    }
    const int64_t shared = kSharedBytesOfRank * static_cast<int64_t>(on_host.size());
    if (on_host.size() > 1 && first.shared_bytes < shared) {
      problems.push_back(
          fmt::format("{}: {} are free in /dev/shm, and {} ranks need {} (NCCL would say \"failed to extend "
                      "/dev/shm/nccl-...\"). Give a container more: docker run --shm-size=1g",
                      place, bytes_text(std::max<int64_t>(0, first.shared_bytes)), on_host.size(), bytes_text(shared)));
    }
    if (ranks.size() > kManyRanks && first.open_files >= 0 && first.open_files < kOpenFiles) {
      problems.push_back(fmt::format("{}: a process may open {} files, and NCCL needs {} among {} ranks: ulimit -n {}",
                                     place, first.open_files, kOpenFiles, ranks.size(), kOpenFiles));
    }
    if (first.unlimited_stack && first.nccl_library >= kOldest && first.nccl_library < kStackSafeNccl) {
      problems.push_back(
          fmt::format("{}: the stack is unlimited, and threads of NCCL {} do not stand that (2.28 does): "
                      "ulimit -s 8192",
                      place, nccl_text(first.nccl_library)));
    }
    if (hosts.size() > 1 && first.interfaces.empty()) {
      problems.push_back(
          fmt::format("{}: there is no network interface beside loopback and those of containers, so NCCL "
                      "reaches no other host (it would say \"no socket interface found\"). ip addr lists "
                      "them; NCCL_SOCKET_IFNAME chooses one",
                      place));
    }
  }
}

}  // namespace

void check_host_facts(const Ranks& ranks, const DeviceJob& job, std::vector<std::string>& problems) {
  check_builds(ranks, problems);
  check_environment(ranks, problems);
  if (job.nccl) {
    check_nccl(ranks, problems);
    check_limits(ranks, problems);
  }
}

void warn_host_facts(const Ranks& ranks, const DeviceJob& job, std::vector<std::string>& warnings) {
  for (const auto& [host, on_host] : group_by(ranks, host_key)) {
    std::set<int> used;
    for (const RankFacts* rank : on_host) {
      used.insert(rank->device_index);
    }
    std::string pairs;
    for (const RankFacts* rank : on_host) {
      for (const int peer : rank->no_peer_access) {
        if (job.nccl && used.contains(peer) && rank->device_index < peer) {
          pairs += fmt::format("{}{}-{}", pairs.empty() ? "" : ", ", rank->device_index, peer);
        }
      }
    }
    if (!pairs.empty()) {
      warnings.push_back(
          fmt::format("{}: the GPUs {} cannot reach each other directly, so NCCL goes through the host's "
                      "memory; nvidia-smi topo -m shows how they are connected (PCIe bridges with ACS, "
                      "containers and virtual machines forbid it)",
                      place_text(on_host), pairs));
    }
    for (const RankFacts* rank : on_host) {
      const auto threads = rank->environment.find("OMP_NUM_THREADS");
      const int wanted = threads == rank->environment.end() ? 0 : std::atoi(threads->second.c_str());
      if (wanted > static_cast<int>(rank->cpus.size())) {
        warnings.push_back(
            fmt::format("host {} (rank {}): {} threads (OMP_NUM_THREADS) may run on {} cores only, {}; the "
                        "launcher bound them (mpirun --bind-to none, srun --cpu-bind=none)",
                        rank->host, rank->world_rank, wanted, rank->cpus.size(), cpu_list_text(rank->cpus)));
      }
    }
  }
}

}  // namespace ashlar
