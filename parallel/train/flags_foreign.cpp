// Names of DeepSpeed, FSDP and others for what has another name here.
#include <algorithm>
#include <cctype>

#include "parallel/train/flags.h"

namespace ashlar {
namespace {

std::string plain_name(std::string_view typed) {
  typed.remove_prefix(std::min(typed.find_first_not_of('-'), typed.size()));
  std::string name(typed);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
  return name;
}

}  // namespace

const std::vector<ForeignName>& foreign_names() {
  constexpr const char* kBatch = "use --global-batch-size (= --micro-batch-size x data size x micro-batches of a step)";
  constexpr const char* kBuckets = "use --ddp-bucket-size, in elements";
  constexpr const char* kOffload = "use --offload-optimizer-device cpu, or nvme with --nvme-path DIR";
  constexpr const char* kOffloadParam =
      "use --offload-param-device cpu or nvme, with --zero-stage 3 and --offload-optimizer-device";
  constexpr const char* kGroups = "use --num-distributed-optimizer-instances N, the data size by the size of a group";
  constexpr const char* kTwoLayers = "leave it out: --zero-stage 3 gathers layer by layer, two at a time";
  constexpr const char* kAlways = "leave it out: gradients are always contiguous and summed where they are needed";
  constexpr const char* kRecompute = "use --recompute-granularity selective, or full with --recompute-method uniform";
  constexpr const char* kNoFile = "leave it out: settings are flags, or a TOML file with --config";
  static const std::vector<ForeignName> table{
      {"gradient-accumulation-steps", kBatch},
      {"train-batch-size", "use --global-batch-size"},
      {"train-micro-batch-size-per-gpu", "use --micro-batch-size"},
      {"per-device-train-batch-size", "use --micro-batch-size"},
      {"gradient-clipping", "use --clip-grad"},
      {"steps-per-print", "use --log-interval"},
      {"learning-rate", "use --lr"},
      {"zero-optimization", "use --zero-stage N"},
      {"stage", "use --zero-stage N"},
      {"fsdp", "use --zero-stage 3"},
      {"sharding-strategy", "use --zero-stage N"},
      {"reduce-bucket-size", kBuckets},
      {"allgather-bucket-size", kBuckets},
      {"zero-reduce-bucket-size", kBuckets},
      {"zero-allgather-bucket-size", kBuckets},
      {"overlap-comm", "use --overlap-grad-reduce and --overlap-param-gather"},
      {"offload-optimizer", kOffload},
      {"cpu-offload", kOffload},
      {"offload-param", kOffloadParam},
      {"cpu-offload-param", kOffloadParam},
      {"zero-hpz-partition-size", kGroups},
      {"mics-shard-size", kGroups},
      {"stage3-prefetch-bucket-size", "use --overlap-param-gather, which gathers one layer ahead"},
      {"stage3-max-live-parameters", kTwoLayers},
      {"stage3-max-reuse-distance", kTwoLayers},
      {"stage3-param-persistence-threshold", kTwoLayers},
      {"sub-group-size", kTwoLayers},
      {"contiguous-gradients", kAlways},
      {"zero-contigious-gradients", kAlways},
      {"reduce-scatter", kAlways},
      {"zero-reduce-scatter", kAlways},
      {"allgather-partitions", kAlways},
      {"communication-data-type", "use --grad-reduce-in-bf16 for sums in bf16; they are fp32 without it"},
      {"grad-accum-dtype", "use --grad-reduce-in-bf16 for sums in bf16; they are fp32 without it"},
      {"activation-checkpointing", kRecompute},
      {"gradient-checkpointing", kRecompute},
      {"number-checkpoints", "use --recompute-granularity full --recompute-method uniform --recompute-num-layers N"},
      {"partition-activations", "use --sequence-parallel, which splits activations among tensor ranks"},
      {"cpu-checkpointing", "activations are not offloaded; use --recompute-granularity full"},
      {"checkpoint-in-cpu", "activations are not offloaded; use --recompute-granularity full"},
      {"deepspeed", kNoFile},
      {"deepspeed-config", kNoFile},
      {"deepspeed-mpi", kNoFile},
      {"local-rank", "leave it out: ranks are those of mpirun"},
      {"scheduler", "use --lr-decay-style and --lr-warmup-iters"},
  };
  return table;
}

std::optional<std::string> foreign_name_hint(std::string_view typed) {
  for (std::string name = plain_name(typed);; name.erase(0, name.find('.') + 1)) {
    const auto found = std::ranges::find(foreign_names(), name, &ForeignName::name);
    if (found != foreign_names().end()) {
      return found->instead;
    }
    if (name.find('.') == std::string::npos) {
      return std::nullopt;
    }
  }
}

}  // namespace ashlar
