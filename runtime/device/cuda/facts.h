// What a rank knows about its GPU, its process and its host before a job starts on them, and the rules that these facts
// of all ranks must meet. The caller exchanges them; no work is started on a GPU.
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

// What the job is going to do, as far as the rules depend on it.
struct DeviceJob {
  bool nccl = true;                          // a GPU for each rank, and NCCL's own needs; else ranks may share GPUs
  int64_t reserve_bytes = int64_t{1} << 30;  // of a GPU, beside the plan: for CUDA itself, NCCL and cuBLAS
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
  std::vector<int> local_cpus;      // the cores beside this GPU; empty where the kernel does not say
  bool is_mig = false;              // an instance of a partitioned GPU
  bool is_prohibited = false;       // compute mode: no process may use it
  bool is_exclusive = false;        // compute mode: one process only
  std::string failure;              // what CUDA says when it is asked to use this GPU; empty: nothing
  int64_t free_bytes = -1;          // of its memory, now
  int64_t needed_bytes = 0;         // by the rank's plan
  std::vector<int> no_peer_access;  // devices that this process sees and that this GPU cannot reach directly

  // NCCL as it numbers versions (22809 is 2.28.9): what was compiled in, and what was loaded. 0: built without it.
  int nccl_header = 0;
  int nccl_library = 0;
  std::string nccl_failure;  // why none was loaded

  std::string build;             // a hash of the program's file
  std::vector<int> cpus;         // on which this process may run
  int64_t locked_bytes = -1;     // most it may lock in memory (ulimit -l); -1: no limit
  int64_t open_files = -1;       // most it may open (ulimit -n); -1: no limit
  bool unlimited_stack = false;  // ulimit -s unlimited
  bool has_infiniband = false;
  int64_t shared_bytes = -1;            // free in /dev/shm; -1: there is none
  std::vector<std::string> interfaces;  // of the network, up; neither loopback nor a container's bridge
};

// Pure. The GPU of a rank: the one of its number on the host; the only one where a launcher shows each rank its own;
// where there are fewer than ranks, -1, or one after the other again when they may share.
int choose_cuda_device(const RankPlace& place, int num_visible, bool share = false);

// Blocks the host. `built_for` is what the kernels of this program were compiled for. Asking a GPU for its free memory
// makes CUDA's context there.
RankFacts gather_rank_facts(const RankPlace& place, std::vector<std::string> built_for, const DeviceJob& job = {});

// Pure. For the way to other ranks, and back.
std::string to_text(const RankFacts& facts);
RankFacts rank_facts_of(const std::string& text);

// Pure. Why some rank has no GPU that this program can use: a build without CUDA, no driver or one too old, fewer GPUs
// than ranks, a GPU that the kernels were not built for. One message a cause.
std::vector<std::string> missing_gpus(std::span<const RankFacts> ranks, const DeviceJob& job = {});

// Pure. What keeps these ranks from running on their GPUs, missing_gpus() first, one message a cause; empty when
// nothing does. Evaluated alike on all ranks from the facts of all. A host without a usable driver is not asked about
// GPUs as well.
std::vector<std::string> check_device_facts(std::span<const RankFacts> ranks, const DeviceJob& job = {});

// Pure. What is worth a warning: GPUs of several kinds, where the slowest sets the pace and the smallest the memory;
// GPUs that cannot reach each other; fewer cores than threads.
std::vector<std::string> warn_device_facts(std::span<const RankFacts> ranks, const DeviceJob& job = {});

// Pure. The cores for one of these ranks: those beside its GPU on which its process may run, divided among the ranks of
// its host that have the same. Empty: leave it where it is, because the kernel does not say or the launcher has bound
// the process elsewhere.
std::vector<int> cores_for(std::span<const RankFacts> ranks, int world_rank);
// Blocks the host. This thread, and those it makes from now on, run on these cores only.
void run_on_cores(const std::vector<int>& cores);

// Parts of gather_rank_facts(). Versions, the number of GPUs and the rank's GPU (facts are left alone in a build
// without CUDA); limits, build and network of this process and host.
void gather_cuda_facts(RankFacts& facts, const RankPlace& place, const DeviceJob& job);
void gather_host_facts(RankFacts& facts);

// Pure. "0-3,8,10-11" as numbers; throws kInternal when it is no such list. And back.
std::vector<int> parse_cpu_list(std::string_view text);
std::string cpu_list_text(const std::vector<int>& cpus);

// Blocks the host. The cores beside a PCI device, from <sysfs>/bus/pci/devices; empty where the kernel does not say.
std::vector<int> read_local_cpus(const std::string& pci_id, const std::string& sysfs = "/sys");

}  // namespace ashlar
