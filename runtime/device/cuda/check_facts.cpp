#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>

#include "runtime/device/cuda/check_facts.h"

namespace ashlar {

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
  constexpr size_t kNamed = 4;
  std::vector<std::string> hosts;
  for (const RankFacts* rank : ranks) {
    if (std::find(hosts.begin(), hosts.end(), rank->host) == hosts.end()) {
      hosts.push_back(rank->host);
    }
  }
  const size_t num_named = std::min(hosts.size(), kNamed);
  return fmt::format("{} {}{} ({})", hosts.size() == 1 ? "host" : "hosts",
                     fmt::join(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(num_named), ", "),
                     num_named < hosts.size() ? fmt::format(" and {} more", hosts.size() - num_named) : "",
                     rank_text(ranks));
}

std::string bytes_text(int64_t bytes) {
  const double megabytes = static_cast<double>(bytes) / 1e6;
  return megabytes < 1000 ? fmt::format("{:.1f} MB", megabytes) : fmt::format("{:.1f} GB", megabytes / 1000);
}

namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string gpu_text(const RankFacts& rank) {
  return fmt::format("{}, {}, compute capability {}.{}", rank.name, bytes_text(rank.memory_bytes), rank.compute_major,
                     rank.compute_minor);
}

constexpr const char* kNoGpuAdvice =
    "Show the job its GPUs (nvidia-smi lists them; a container or batch job must be given them), or use --device cpu";

// The rules of one host. Returns false when its GPUs need not be looked at.
bool check_host(const Ranks& ranks, std::vector<std::string>& problems) {
  const RankFacts& first = *ranks.front();
  if (first.driver_version == 0) {
    problems.push_back(
        fmt::format("{}: no NVIDIA driver loaded; CUDA {} needs one. Install it or load its kernel module "
                    "(nvidia-smi shows whether it answers), give the container its GPUs, or use --device cpu",
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
    problems.push_back(
        fmt::format("{}: {} ranks but {} visible GPUs, CUDA_VISIBLE_DEVICES is {}. {}", place_text(ranks), num_ranks,
                    first.num_visible, first.visible_devices,
                    first.num_visible == 0
                        ? std::string(kNoGpuAdvice)
                        : fmt::format("Each rank needs a GPU of its own: start at most {} ranks on this host (mpirun "
                                      "--map-by ppr:{}:node with -np to match), or let them share GPUs with "
                                      "--distributed-backend staged",
                                      first.num_visible, first.num_visible)));
  }
  return true;
}

// A GPU that is there and cannot be used.
void check_modes(const Ranks& ranks, const DeviceJob& job, std::vector<std::string>& problems) {
  const auto owners = [&](auto&& wrong) {
    Ranks found;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found),
                 [&](const RankFacts* rank) { return wrong(*rank); });
    return group_by(found, host_key);
  };
  for (const auto& [host, found] : owners([](const RankFacts& rank) { return rank.is_prohibited; })) {
    problems.push_back(
        fmt::format("{}: the GPU {} is in compute mode Prohibited, no process may use it. As root: "
                    "nvidia-smi -i {} -c DEFAULT",
                    place_text(found), found.front()->uuid, found.front()->pci_id));
  }
  for (const auto& [host, found] :
       owners([](const RankFacts& rank) { return !rank.failure.empty() && !rank.is_prohibited; })) {
    problems.push_back(fmt::format(
        "{}: the GPU {} at PCI {} does not answer: {}.{} nvidia-smi shows its state and who uses it", place_text(found),
        found.front()->uuid, found.front()->pci_id, found.front()->failure,
        found.front()->is_exclusive ? " Its compute mode is Exclusive_Process: one process alone may use it." : ""));
  }
  if (ranks.size() > 1 && job.nccl) {
    for (const auto& [host, found] : owners([](const RankFacts& rank) { return rank.is_mig; })) {
      problems.push_back(
          fmt::format("{}: {} is an instance of a partitioned GPU (MIG, CUDA_VISIBLE_DEVICES is {}), and NCCL cannot "
                      "join instances. Use whole GPUs (nvidia-smi -mig 0), or give --distributed-backend staged",
                      place_text(found), found.front()->name, found.front()->visible_devices));
    }
  }
}

void check_memory(const Ranks& ranks, const DeviceJob& job, std::vector<std::string>& problems) {
  for (const auto& [key, sharing] :
       group_by(ranks, [](const RankFacts& rank) { return std::tuple(rank.host, rank.host_id, rank.uuid); })) {
    int64_t needed = 0;
    for (const RankFacts* rank : sharing) {
      needed += rank->needed_bytes + job.reserve_bytes;
    }
    const RankFacts& first = *sharing.front();
    if (first.needed_bytes == 0 || first.free_bytes < 0 || needed <= first.free_bytes) {
      continue;
    }
    const int64_t used = first.memory_bytes - first.free_bytes;
    problems.push_back(fmt::format(
        "{}: {} are free on the GPU {}, and {} are needed (the plan and {} a rank for CUDA, NCCL and cuBLAS). {} of "
        "its "
        "{} are in use: nvidia-smi shows by whom. Use more ranks, a smaller --micro-batch-size or a smaller model",
        place_text(sharing), bytes_text(first.free_bytes), first.uuid, bytes_text(needed),
        bytes_text(job.reserve_bytes), bytes_text(used), bytes_text(first.memory_bytes)));
  }
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
                    "start fewer ranks on this host, show each rank another GPU, or give --distributed-backend staged",
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

Ranks with_gpu(std::span<const RankFacts> ranks) {
  Ranks found;
  for (const RankFacts& rank : ranks) {
    if (rank.device_index >= 0) {
      found.push_back(&rank);
    }
  }
  return found;
}

// What both of the public rules begin with: the ranks whose GPUs can be looked at, and why the others' cannot.
Ranks usable_gpus(std::span<const RankFacts> ranks, std::vector<std::string>& problems) {
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
  for (const auto& [host, on_host] : group_by(all, host_key)) {
    if (check_host(on_host, problems)) {
      std::copy_if(on_host.begin(), on_host.end(), std::back_inserter(usable),
                   [](const RankFacts* rank) { return rank->device_index >= 0; });
    }
  }
  check_architectures(usable, problems);
  return usable;
}

}  // namespace

std::vector<std::string> missing_gpus(std::span<const RankFacts> ranks, const DeviceJob&) {
  std::vector<std::string> problems;
  usable_gpus(ranks, problems);
  return problems;
}

std::vector<std::string> check_device_facts(std::span<const RankFacts> ranks, const DeviceJob& job) {
  std::vector<std::string> problems;
  const Ranks usable = usable_gpus(ranks, problems);
  if (job.nccl) {
    check_duplicates(usable, problems);
  }
  check_modes(usable, job, problems);
  check_memory(usable, job, problems);
  Ranks with_cuda;
  for (const RankFacts& rank : ranks) {
    if (rank.runtime_version != 0) {
      with_cuda.push_back(&rank);
    }
  }
  check_host_facts(with_cuda, job, problems);
  return problems;
}

std::vector<std::string> warn_device_facts(std::span<const RankFacts> ranks, const DeviceJob& job) {
  std::vector<std::string> warnings;
  const Ranks found = with_gpu(ranks);
  const auto kinds = group_by(found, gpu_text);
  if (kinds.size() > 1) {
    std::string table;
    for (const auto& [gpu, owners] : kinds) {
      table += fmt::format("\n  {}: {}", rank_text(owners), gpu);
    }
    warnings.push_back("the ranks have different GPUs; the slowest sets the pace and the smallest the memory:" + table);
  }
  warn_host_facts(found, job, warnings);
  return warnings;
}

}  // namespace ashlar
