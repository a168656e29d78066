#include "parallel/train/start_device.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "kernels/plain_types.h"
#include "parallel/plan/memory.h"
#include "parallel/plan/plan_text.h"
#include "parallel/train/run_shape_of.h"
#include "parallel/train/training.h"
#include "runtime/base/threads.h"
#include "runtime/comm/nccl/nccl_world.h"
#include "runtime/device/cuda/facts.h"

namespace ashlar {
namespace {

// "sm_80 sm_90a compute_80" as it stands in cmake/ashlar_vendor.cmake.
std::vector<std::string> built_for() {
  const std::string list = ASHLAR_CUDA_ARCHITECTURES;
  std::vector<std::string> names;
  for (size_t start = 0; start < list.size();) {
    const size_t end = std::min(list.find(' ', start), list.size());
    names.push_back(list.substr(start, end - start));
    start = end + 1;
  }
  return names;
}

void take_nccl_facts(RankFacts& facts) {
  facts.nccl_header = nccl_header_version();
  try {
    facts.nccl_library = nccl_version();
  } catch (const Error& error) {  // a fact like any other: all ranks shall know it
    facts.nccl_failure = error.what();
  }
}

std::vector<RankFacts> gather_facts(RankContext& rank, const TrainOptions& options, const DeviceJob& job) {
  std::vector<std::string> texts;
  RankFacts mine;
  agree(rank.world, [&] {  // CUDA may fail here too
    mine = gather_rank_facts({.world_rank = rank.world.rank(),
                              .host_rank = rank.place.host_rank,
                              .num_host_ranks = rank.place.num_host_ranks},
                             built_for(), job);
    mine.needed_bytes = planned_device_bytes(options, rank.world.rank());
    if (job.nccl && mine.device_index >= 0) {
      take_nccl_facts(mine);
    }
  });
  texts = all_gather_text(rank.world, to_text(mine));
  std::vector<RankFacts> all;
  agree(rank.world, [&] { std::ranges::transform(texts, std::back_inserter(all), rank_facts_of); });
  return all;
}

// The flag that asks for GPUs. Under auto they are there, so the CPU takes over only where the user says so.
std::string asked_by(const TrainOptions& options) {
  if (options.device == "cuda") {
    return "--device cuda";
  }
  return options.distributed_backend.empty() ? "--device auto found GPUs (--device cpu leaves them alone)"
                                             : "--distributed-backend " + options.distributed_backend;
}

[[noreturn]] void refuse(const TrainOptions& options, const std::vector<std::string>& problems) {
  throw AgreedError(ErrorCode::kUsage, fmt::format("{}: the ranks cannot start on GPUs:\n  {}", asked_by(options),
                                                   fmt::join(problems, "\n  ")));
}

// "no NVIDIA driver loaded" of a message that goes on with advice.
std::string reason_of(const std::string& problem) {
  return problem.substr(0, std::min(problem.find("; "), problem.find(". ")));
}

DeviceRequest use_cpu(RankContext& rank, const TrainOptions& options, const std::string& why) {
  if (rank.world.rank() == 0) {
    rank.log.info("device: CPU, {}", why);
    if (options.device != "cpu" && (options.gemm != "auto" || options.allow_tf32)) {
      rank.log.warning("--gemm and --allow-tf32 have no use on a CPU: they are about matrix products on GPUs");
    }
  }
  return {};
}

// What the kernels of a GPU do not take, before the first of them says so in the middle of a step.
std::vector<std::string> check_gpu_sizes(const TrainOptions& options) {
  std::vector<std::string> problems;
  if (options.hidden_size > kernels::kMaxLayernormColumns) {
    problems.push_back(fmt::format("--hidden-size {}: LayerNorm on a GPU takes at most {}; nearest legal value: {}",
                                   options.hidden_size, kernels::kMaxLayernormColumns, kernels::kMaxLayernormColumns));
  }
  if (options.gemm == "own") {
    const GptConfig config = gpt_config(options);
    const int64_t t = options.tensor_model_parallel_size;
    const std::pair<const char*, int64_t> rows[] = {
        {"--hidden-size", config.width},
        {"--hidden-size / --tensor-model-parallel-size", config.width / t},
        {"--ffn-hidden-size / --tensor-model-parallel-size", config.ffn / t},
        {"the padded vocabulary / --tensor-model-parallel-size "
         "(--make-vocab-size-divisible-by)",
         config.padded_vocab / t}};
    for (const auto& [name, length] : rows) {
      if (length % 8 != 0) {
        problems.push_back(fmt::format(
            "--gemm own: rows of our matrix products are multiples of 8 elements, and {} is {}; nearest multiple: {}. "
            "Or give --gemm auto, which leaves these to cuBLASLt",
            name, length, std::max<int64_t>(8, (length + 4) / 8 * 8)));
      }
    }
  }
  return problems;
}

// The job on its GPUs in one line; more lines where GPUs differ come from the warnings.
std::string chosen_text(const std::vector<RankFacts>& ranks, const std::string& backend) {
  std::vector<std::string> hosts;
  for (const RankFacts& rank : ranks) {
    if (std::ranges::count(hosts, rank.host) == 0) {
      hosts.push_back(rank.host);
    }
  }
  return fmt::format("device: CUDA, {} rank{} on {} ({}), {} for traffic", ranks.size(), ranks.size() == 1 ? "" : "s",
                     ranks.front().name, fmt::join(hosts, ", "), backend);
}

void bind(RankContext& rank, const std::vector<RankFacts>& ranks) {
  const RankFacts& mine = ranks[static_cast<size_t>(rank.world.rank())];
  const std::vector<int> cores = cores_for(ranks, rank.world.rank());
  if (cores.empty()) {
    if (!mine.local_cpus.empty()) {
      rank.log.warning(
          "the launcher bound this rank to the cores {}, and its GPU {} is beside {}: start with mpirun --bind-to none "
          "or srun --cpu-bind=none, and each rank takes cores beside its GPU",
          cpu_list_text(mine.cpus), mine.pci_id, cpu_list_text(mine.local_cpus));
    }
    return;
  }
  run_on_cores(cores);
  const int threads = use_threads(std::max(1, static_cast<int>(cores.size())));
  rank.log.info("GPU {} at PCI {}, cores {}, {} thread{}", mine.device_index, mine.pci_id, cpu_list_text(cores),
                threads, threads == 1 ? "" : "s");
}

RankMemory planned_device_memory(const TrainOptions& options, int world_rank) {
  const GridCoordinate coordinate = coordinate_of(grid_shape(options), rank_order(options), world_rank);
  const RunShape shape = run_shape_of(options, used_device(options, DeviceKind::kCuda));
  return plan_memory(shape)[static_cast<size_t>(coordinate.pipeline)];
}

}  // namespace

void check_room(RankContext& rank, const TrainOptions& options) {
  if (rank.device.kind() != DeviceKind::kCuda) {
    return;
  }
  agree(rank.world, [&] {
    const RankMemory planned = planned_device_memory(options, rank.device_world.rank());
    const int64_t needed =
        planned.total() - planned.of(MemoryItem::kKernels) - planned.of(MemoryItem::kCommunication);  // are there
    const int64_t unheld = rank.device.unheld_bytes().value_or(needed);
    REQUIRE(needed <= unheld, ErrorCode::kUsage,
            "rank {}: {} needs {} more for the plan of this run, and {} are free now that CUDA, NCCL and cuBLAS have "
            "what they need: use more ranks, a smaller --micro-batch-size, --offload-optimizer-device cpu or a smaller "
            "model",
            rank.device_world.rank(), rank.device.name(), memory_text(needed), memory_text(unheld));
  });
}

int64_t planned_device_bytes(const TrainOptions& options, int world_rank) {
  return planned_device_memory(options, world_rank).total();
}

DeviceRequest start_device(RankContext& rank, const TrainOptions& options) {
  const std::string backend = options.distributed_backend.empty() ? "nccl" : options.distributed_backend;
  const bool is_open = options.device == "auto" && options.distributed_backend.empty();  // the CPU will do
  if (options.device == "cpu") {
    return use_cpu(rank, options, "as --device cpu asks");
  }
  if (backend == "mpi") {
    return use_cpu(rank, options, "because --distributed-backend mpi carries its memory only");
  }
  const DeviceJob job{.nccl = backend == "nccl"};
  const std::vector<RankFacts> ranks = gather_facts(rank, options, job);
  if (const std::vector<std::string> missing = missing_gpus(ranks, job); is_open && !missing.empty()) {
    return use_cpu(rank, options, fmt::format("because for --device auto {}", reason_of(missing.front())));
  }
  std::vector<std::string> problems = check_device_facts(ranks, job);
  std::ranges::move(check_gpu_sizes(options), std::back_inserter(problems));
  if (!problems.empty()) {
    refuse(options, problems);
  }
  if (rank.world.rank() == 0) {
    rank.log.info("{}", chosen_text(ranks, backend));
    for (const std::string& warning : warn_device_facts(ranks, job)) {
      rank.log.warning("{}", warning);
    }
  }
  bind(rank, ranks);
  return {.kind = DeviceKind::kCuda,
          .backend = job.nccl ? DeviceBackend::kNccl : DeviceBackend::kStaged,
          .gpu_index = ranks[static_cast<size_t>(rank.world.rank())].device_index,
          .init_timeout_seconds = options.distributed_timeout_seconds};
}

}  // namespace ashlar
