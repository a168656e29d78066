#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "runtime/device/cuda/facts.h"

namespace ashlar {
namespace {

using Ranks = std::vector<const RankFacts*>;

// "rank 3", "ranks 0-7, 9"
std::string rank_text(const Ranks& ranks) {
  std::vector<int> numbers;
  for (const RankFacts* rank : ranks) {
    numbers.push_back(rank->world_rank);
  }
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ", ";
    text += first == last ? fmt::format("{}", numbers[first]) : fmt::format("{}-{}", numbers[first], numbers[last]);
    first = last + 1;
  }
  return fmt::format("{} {}", numbers.size() == 1 ? "rank" : "ranks", text);
}

std::string place_text(const Ranks& ranks) {
  return fmt::format("host {} ({})", ranks.front()->host, rank_text(ranks));
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string gpu_text(const RankFacts& rank) {
  return fmt::format("{}, {:.1f} GiB, compute capability {}.{}", rank.name,
                     static_cast<double>(rank.memory_bytes) / (1 << 30), rank.compute_major, rank.compute_minor);
}

// Ranks in groups of equal keys, the groups in ascending order of keys.
template <typename Key>
auto group_by(const Ranks& ranks, Key key) {
  std::map<decltype(key(*ranks.front())), Ranks> groups;
  for (const RankFacts* rank : ranks) {
    groups[key(*rank)].push_back(rank);
  }
  return groups;
}

// The rules of one host. Returns false when its GPUs need not be looked at.
bool check_host(const Ranks& ranks, std::vector<std::string>& problems) {
  const RankFacts& first = *ranks.front();
  if (first.driver_version == 0) {
    problems.push_back(
        fmt::format("{}: no NVIDIA driver loaded; CUDA {} needs one. Install it or load its kernel module "
                    "(nvidia-smi shows whether it answers), or give the container its GPUs",
                    place_text(ranks), version_text(first.runtime_version)));
    return false;
  }
  if (first.driver_version / 1000 < first.runtime_version / 1000) {
    problems.push_back(
        fmt::format("{}: the NVIDIA driver is too old: it serves CUDA {}, this program was built with "
                    "CUDA {}; CUDA 13 needs R580, CUDA 12 needs R525. Update the driver or build with "
                    "CUDA {}",
                    place_text(ranks), version_text(first.driver_version), version_text(first.runtime_version),
                    first.driver_version / 1000));
    return false;
  }
  const int num_ranks = static_cast<int>(ranks.size());
  const auto without_gpu = [](const RankFacts* rank) { return rank->device_index < 0; };
  if (std::any_of(ranks.begin(), ranks.end(), without_gpu)) {
    problems.push_back(fmt::format(
        "{}: {} ranks but {} visible GPUs, CUDA_VISIBLE_DEVICES is {}. Each rank needs a GPU of its own: start at most "
        "{} ranks on this host (mpirun --map-by ppr:{}:node with -np to match)",
        place_text(ranks), num_ranks, first.num_visible, first.visible_devices, first.num_visible, first.num_visible));
  }
  return true;
}

void check_duplicates(const Ranks& ranks, std::vector<std::string>& problems) {
  for (const auto& [key, sharing] : group_by(ranks, [](const RankFacts& rank) {
         return std::pair(rank.host_id.empty() ? rank.host : rank.host_id, rank.uuid);
       })) {
    if (sharing.size() < 2 || key.second.empty()) {
      continue;
    }
    const RankFacts& first = *sharing.front();
    std::string mapping;
    for (const RankFacts* rank : sharing) {
      mapping += fmt::format("{}rank {} took device {} of {} as rank {} of its host (CUDA_VISIBLE_DEVICES is {})",
                             mapping.empty() ? "" : "; ", rank->world_rank, rank->device_index, rank->num_visible,
                             rank->host_rank, rank->visible_devices);
    }
    problems.push_back(
        fmt::format("{}: these ranks use the same GPU {} at PCI {}: {}. NCCL needs a GPU for each rank: "
                    "start fewer ranks on this host or show each rank another GPU",
                    place_text(sharing), first.uuid, first.pci_id, mapping));
  }
}

// The number in "sm_80", "sm_90a" or "compute_80", and what follows it.
struct Architecture {
  bool binary = false;
  int number = 0;
  bool exact = false;  // "a": for this compute capability only
};

Architecture parse_architecture(std::string_view text) {
  Architecture result;
  result.binary = text.starts_with("sm_");
  text.remove_prefix(std::min(text.size(), text.find('_') + 1));
  const char* const end = text.data() + text.size();
  const char* const stop = std::from_chars(text.data(), end, result.number).ptr;
  result.exact = stop != end;
  return result;
}

// Machine code runs on its own major version from its minor on; PTX is translated for anything newer.
bool runs_on(const std::string& built_for, int major, int minor) {
  const Architecture built = parse_architecture(built_for);
  const int capability = 10 * major + minor;
  if (built.exact) {
    return capability == built.number;
  }
  return built.number <= capability && (!built.binary || built.number / 10 == major);
}

void check_architectures(const Ranks& ranks, std::vector<std::string>& problems) {
  for (const auto& [gpu, owners] : group_by(ranks, gpu_text)) {
    const RankFacts& first = *owners.front();
    const auto fits = [&](const std::string& built) {
      return runs_on(built, first.compute_major, first.compute_minor);
    };
    if (first.built_for.empty() || std::any_of(first.built_for.begin(), first.built_for.end(), fits)) {
      continue;
    }
    std::string built;
    for (const std::string& one : first.built_for) {
      built += (built.empty() ? "" : ", ") + one;
    }
    problems.push_back(
        fmt::format("{} on {}: this program was built for {}, which does not run there. Use other GPUs or "
                    "build it for compute capability {}.{} too",
                    gpu, place_text(owners), built, first.compute_major, first.compute_minor));
  }
}

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

Ranks with_gpu(std::span<const RankFacts> ranks) {
  Ranks found;
  for (const RankFacts& rank : ranks) {
    if (rank.device_index >= 0) {
      found.push_back(&rank);
    }
  }
  return found;
}

}  // namespace

std::vector<std::string> check_device_facts(std::span<const RankFacts> ranks) {
  std::vector<std::string> problems;
  Ranks all;
  Ranks without_cuda;
  for (const RankFacts& rank : ranks) {
    (rank.runtime_version == 0 ? without_cuda : all).push_back(&rank);
  }
  if (!without_cuda.empty()) {
    problems.push_back(
        fmt::format("{}: this program was built without CUDA; install the CUDA toolkit, configure again "
                    "and build",
                    place_text(without_cuda)));
  }
  Ranks usable;
  for (const auto& [host, on_host] :
       group_by(all, [](const RankFacts& rank) { return std::pair(rank.host, rank.host_id); })) {
    if (check_host(on_host, problems)) {
      std::copy_if(on_host.begin(), on_host.end(), std::back_inserter(usable),
                   [](const RankFacts* rank) { return rank->device_index >= 0; });
    }
  }
  check_duplicates(usable, problems);
  check_architectures(usable, problems);
  check_environment(all, problems);
  return problems;
}

std::vector<std::string> warn_device_facts(std::span<const RankFacts> ranks) {
  const auto kinds = group_by(with_gpu(ranks), gpu_text);
  if (kinds.size() < 2) {
    return {};
  }
  std::string table;
  for (const auto& [gpu, owners] : kinds) {
    table += fmt::format("\n  {}: {}", rank_text(owners), gpu);
  }
  return {"the ranks have different GPUs; the slowest sets the pace and the smallest the memory:" + table};
}

}  // namespace ashlar
