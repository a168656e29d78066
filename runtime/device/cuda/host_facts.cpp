// What a process may do on its host, and how the host is connected.
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/device/cuda/facts.h"

namespace ashlar {
namespace {

int64_t limit_of(__rlimit_resource resource) {
  rlimit limit = {};
  getrlimit(resource, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_cur);
}

// Programs of one name that were built from different sources meet more often than one would think.
std::string hash_of_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> block(size_t{1} << 20);
  uint64_t hash = 0;
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    hash = hash_bytes(block.data(), static_cast<size_t>(file.gcount()), hash);
  }
  return fmt::format("{:016x}", hash);
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

std::vector<std::string> network_interfaces() {
  std::vector<std::string> names;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return names;
  }
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    const std::string name = one->ifa_name;
    const bool addressed =
        one->ifa_addr != nullptr && (one->ifa_addr->sa_family == AF_INET || one->ifa_addr->sa_family == AF_INET6);
    const bool up = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
    const bool of_containers = name.starts_with("docker") || name.starts_with("virbr") || name.starts_with("veth");
    if (addressed && up && !of_containers && std::count(names.begin(), names.end(), name) == 0) {
      names.push_back(name);
    }
  }
  freeifaddrs(first);
  return names;
}

}  // namespace

void gather_host_facts(RankFacts& facts) {
  facts.build = hash_of_program();
  facts.cpus = allowed_cpus();
  facts.locked_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.unlimited_stack = limit_of(RLIMIT_STACK) < 0;
  std::error_code code;
  facts.has_infiniband = !std::filesystem::is_empty("/sys/class/infiniband", code) && !code;
  struct statvfs shared = {};
  if (statvfs("/dev/shm", &shared) == 0) {
    facts.shared_bytes = static_cast<int64_t>(shared.f_bavail) * static_cast<int64_t>(shared.f_frsize);
  }
  facts.interfaces = network_interfaces();
}

std::vector<int> cores_for(std::span<const RankFacts> ranks, int world_rank) {
  const auto beside = [](const RankFacts& rank) {
    std::vector<int> cores;
    std::copy_if(rank.local_cpus.begin(), rank.local_cpus.end(), std::back_inserter(cores),
                 [&](int cpu) { return std::count(rank.cpus.begin(), rank.cpus.end(), cpu) > 0; });
    return cores;
  };
  const auto mine =
      std::find_if(ranks.begin(), ranks.end(), [&](const RankFacts& rank) { return rank.world_rank == world_rank; });
  const std::vector<int> cores = mine == ranks.end() ? std::vector<int>{} : beside(*mine);
  int64_t num_sharing = 0;
  int64_t place = 0;
  for (const RankFacts& rank : ranks) {
    if (!cores.empty() && rank.host == mine->host && rank.host_id == mine->host_id && beside(rank) == cores) {
      place += rank.host_rank < mine->host_rank ? 1 : 0;
      ++num_sharing;
    }
  }
  const auto size = static_cast<int64_t>(cores.size());
  if (num_sharing > size) {
    return cores;  // less than a core for each: they share all
  }
  return num_sharing == 0 ? cores
                          : std::vector<int>(cores.begin() + size * place / num_sharing,
                                             cores.begin() + size * (place + 1) / num_sharing);
}

void run_on_cores(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    CPU_SET(static_cast<size_t>(core), &set);
  }
  REQUIRE(sched_setaffinity(0, sizeof(set), &set) == 0, ErrorCode::kUsage,
          "this process may not run on the cores beside its GPU, {}: start it with all cores of the host "
          "(mpirun --bind-to none, srun --cpu-bind=none)",
          cpu_list_text(cores));
}

}  // namespace ashlar
