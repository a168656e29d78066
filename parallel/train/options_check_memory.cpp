// What is wrong with settings that save memory: recomputation, sharding, offloading.
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/train/options_check.h"
#include "runtime/base/suggest.h"

namespace ashlar {

void check_recompute(const TrainOptions& o, Problems& problems) {
  const std::string granularity =
      o.recompute_activations && o.recompute_granularity.empty() ? "selective" : o.recompute_granularity;
  const std::string shown = granularity.empty() ? "none" : granularity;
  const bool full = granularity == "full";
  problems.add_if(full && o.recompute_activations,
                  "--recompute-activations (which is --recompute-granularity selective) and --recompute-granularity "
                  "full contradict each other: give one of them");
  problems.add_if(!full && (!o.recompute_method.empty() || o.recompute_num_layers > 1),
                  "--recompute-method and --recompute-num-layers need --recompute-granularity full; got {}", shown);
  problems.add_if(full && o.recompute_method.empty(),
                  "--recompute-granularity full needs --recompute-method uniform or block");
  problems.add_if(granularity != "selective" && !o.recompute_modules.empty(),
                  "--recompute-modules {} needs --recompute-granularity selective; got {}",
                  fmt::join(o.recompute_modules, " "), shown);
  for (const std::string& module : o.recompute_modules) {
    const std::vector<std::string> known{"core_attn", "layernorm", "mlp_act"};
    const auto nearest = nearest_name(module, known);
    problems.add_if(!std::ranges::count(known, module), "--recompute-modules expects some of {}; got '{}'{}",
                    fmt::join(known, ", "), module, nearest ? fmt::format("; did you mean {}?", *nearest) : "");
  }
  if (!full || o.num_layers < o.pipeline_model_parallel_size) {
    return;
  }
  try {
    const std::vector<int64_t> stages =
        split_layers(o.num_layers, o.pipeline_model_parallel_size, o.decoder_first_pipeline_num_layers,
                     o.decoder_last_pipeline_num_layers);
    const int64_t fewest = *std::ranges::min_element(stages);
    problems.add_if(o.recompute_num_layers > fewest,
                    "--recompute-num-layers {} is more than the {} layers of a stage (--num-layers {}, "
                    "--pipeline-model-parallel-size {}); nearest legal value: {}",
                    o.recompute_num_layers, fewest, o.num_layers, o.pipeline_model_parallel_size, fewest);
  } catch (const Error&) {  // check_model has said it
  }
}

void check_sharding(const TrainOptions& o, Problems& problems) {
  try {
    zero_stage_of(o);
  } catch (const Error& error) {
    problems.add(error.what());
    return;
  }
  problems.add_if(o.grad_reduce_in_bf16 && !o.bf16,
                  "--grad-reduce-in-bf16 needs --bf16: other precisions sum their gradients in fp32; leave it out");
  problems.add_if(o.num_distributed_optimizer_instances > 1 && zero_stage_of(o) == 0,
                  "--num-distributed-optimizer-instances {} needs --zero-stage of at least 1: with 0 nothing is shared "
                  "out; nearest legal value: 1",
                  o.num_distributed_optimizer_instances);
}

void check_offload(const TrainOptions& o, Problems& problems) {
  std::string device;
  try {
    device = offload_optimizer_of(o);
  } catch (const Error& error) {
    problems.add(error.what());
    return;
  }
  const std::string values = offload_param_of(o);
  problems.add_if(
      values != "none" && zero_stage_of(o) != 3,
      "--offload-param-device {} needs --zero-stage 3, which gathers weights where they are read; found {}; "
      "nearest legal value: none",
      values, zero_stage_of(o));
  problems.add_if(
      values != "none" && device == "none",
      "--offload-param-device {} needs --offload-optimizer-device cpu or nvme beside it: weights are written "
      "where they lie by the host, which updates offloaded state; nearest legal value: none",
      values);
  problems.add_if(values == "cpu" && o.device == "cpu",
                  "--offload-param-device cpu has no use with --device cpu: the weights are in host memory already; "
                  "nearest legal values: none, or nvme with --nvme-path DIR");
  problems.add_if((device == "nvme" || values == "nvme") && o.nvme_path.empty(),
                  "--{} nvme needs --nvme-path DIR, an existing directory on a disk of every host",
                  device == "nvme" ? "offload-optimizer-device" : "offload-param-device");
  problems.add_if(device != "nvme" && values != "nvme" && !o.nvme_path.empty(),
                  "--nvme-path {} is given, and nothing goes there with --offload-optimizer-device {}; nearest legal "
                  "value: --offload-optimizer-device nvme",
                  o.nvme_path, device);
  problems.add_if(
      device == "cpu" && o.device == "cpu",
      "--offload-optimizer-device cpu has no use with --device cpu: the optimizer's state is in host memory "
      "already; nearest legal values: none, or nvme with --nvme-path DIR");
  problems.add_if(!o.test_offload_fault.empty() && device != "nvme",
                  "--test-offload-fault {} needs --offload-optimizer-device nvme", o.test_offload_fault);
}

}  // namespace ashlar
