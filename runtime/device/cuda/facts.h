// What a rank knows about its GPU before anything is started on it, and the rules that these facts of all ranks must
// meet. The facts are exchanged by the caller; gathering them starts no work and no context on a GPU.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar {

struct RankPlace {
  int world_rank = 0;
  int host_rank = 0;  // among the ranks of this host, by shared memory and not by a launcher's variable
  int num_host_ranks = 1;
};

struct RankFacts {
  int world_rank = 0;
  int host_rank = 0;
  std::string host;     // its name, for messages
  std::string host_id;  // the kernel's boot id: two hosts, or two containers, may carry one name

  // As CUDA numbers versions: 1000 * major + 10 * minor. Runtime 0: built without CUDA. Driver 0: none loaded.
  int runtime_version = 0;
  int driver_version = 0;
  int num_visible = 0;                             // GPUs that this process sees
  std::string visible_devices;                     // CUDA_VISIBLE_DEVICES, or "unset"
  std::map<std::string, std::string> environment;  // CUDA_*, NCCL_*, OMP_* and UCX_* variables
  std::vector<std::string> built_for;              // "sm_80", "sm_90a", "compute_80"; empty: no kernels to ask about

  // The GPU of this rank; -1 and empty where there is none for it.
  int device_index = -1;
  std::string name;
  std::string uuid;    // "GPU-01234567-89ab-..."
  std::string pci_id;  // "0000:1b:00.0"
  int64_t memory_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  std::vector<int> local_cpus;  // the cores beside this GPU; empty where the kernel does not say
};

// Pure. The GPU of a rank: the one of its number on the host; the only one where a launcher shows each rank its own;
// -1 when there are fewer than ranks.
int choose_cuda_device(const RankPlace& place, int num_visible);

// Blocks the host. `built_for` is what the kernels of this program were compiled for.
RankFacts gather_rank_facts(const RankPlace& place, std::vector<std::string> built_for);

// Pure. What keeps these ranks from running on their GPUs, one message a cause; empty when nothing does. Evaluated
// alike on all ranks from the facts of all. A host without a usable driver is not asked about GPUs as well.
std::vector<std::string> check_device_facts(std::span<const RankFacts> ranks);

// Pure. What is worth a warning: GPUs of several kinds, where the slowest sets the pace and the smallest the memory.
std::vector<std::string> warn_device_facts(std::span<const RankFacts> ranks);

// Fills in versions, the number of GPUs and the rank's GPU. Leaves the facts alone in a build without CUDA.
void gather_cuda_facts(RankFacts& facts, const RankPlace& place);

// Pure. "0-3,8,10-11" as numbers; throws kInternal when it is no such list.
std::vector<int> parse_cpu_list(std::string_view text);

// Blocks the host. The cores beside a PCI device, from <sysfs>/bus/pci/devices; empty where the kernel does not say.
std::vector<int> read_local_cpus(const std::string& pci_id, const std::string& sysfs = "/sys");

}  // namespace ashlar
