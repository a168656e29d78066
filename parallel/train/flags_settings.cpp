// Settings that have several names.
#include "parallel/train/flags.h"

namespace ashlar {

const std::vector<Setting>& settings_of_many_names() {
  static const std::vector<Setting> table{
      {"what the data ranks share out",
       {{"zero-stage"}, {"data-parallel-sharding-strategy"}, {"use-distributed-optimizer"}, {"use-megatron-fsdp"}}},
      {"where the optimizer's state lies", {{"offload-optimizer-device"}, {"optimizer-cpu-offload"}}},
      {"whether activations are recomputed", {{"recompute-granularity"}, {"recompute-activations"}}},
      {"which activations are recomputed",
       {{"recompute-method", "recompute-num-layers"}, {"recompute-activations", "recompute-modules"}}},
      {"the precision", {{"bf16"}, {"fp16"}}},
      {"the kind of loss scale",
       {{"loss-scale"},
        {"initial-loss-scale", "initial-scale-power", "min-loss-scale", "loss-scale-window", "hysteresis"}}},
      {"the first loss scale", {{"initial-loss-scale"}, {"initial-scale-power"}}},
      {"the precision of summed gradients", {{"grad-reduce-in-bf16"}, {"accumulate-allreduce-grads-in-fp32"}}},
      {"the activation", {{"activation"}, {"openai-gelu"}}},
      {"the length of the run", {{"train-iters"}, {"train-samples"}}},
      {"the length of the decay", {{"lr-decay-iters"}, {"lr-decay-samples"}}},
      {"the length of the warm-up", {{"lr-warmup-iters"}, {"lr-warmup-samples"}, {"lr-warmup-fraction"}}},
      {"the data", {{"data-path"}, {"train-data-path", "valid-data-path"}, {"mock-data"}}}};
  return table;
}

}  // namespace ashlar
