// What is wrong with settings that save memory: recomputation, sharding, offloading.
#include <algorithm>

#include "parallel/train/options_check.h"

namespace ashlar {
namespace {

// The flag that says what is recomputed, as it was given.
std::string recompute_text(const TrainOptions& o) {
  return o.recompute_activations           ? "--recompute-activations"
         : o.recompute_granularity.empty() ? "no --recompute-granularity"
                                           : "--recompute-granularity " + o.recompute_granularity;
}

// The uneven split, where a stage has fewer layers because of it.
std::string uneven_text(const TrainOptions& o, int64_t fewest) {
  if (o.num_layers / o.pipeline_model_parallel_size <= fewest) {
    return "";
  }
  const auto text = [](const char* name, std::optional<int64_t> layers) {
    return layers ? fmt::format(", --decoder-{}-pipeline-num-layers {}", name, *layers) : std::string();
  };
  return text("first", o.decoder_first_pipeline_num_layers) + text("last", o.decoder_last_pipeline_num_layers);
}

// Nothing where two names for it contradict each other, which check_sharding() says.
std::optional<int> legal_zero_stage(const TrainOptions& o) {
  try {
    return zero_stage_of(o);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

void check_recompute(const TrainOptions& o, Problems& problems) {
  const bool full = o.recompute_granularity == "full";
  const bool selective = o.recompute_granularity == "selective" || (o.recompute_activations && !full);
  problems.add_if(full && o.recompute_activations,
                  "--recompute-activations (which is --recompute-granularity selective) and --recompute-granularity "
                  "full contradict each other: give one of them");
  problems.add_if(!full && !o.recompute_method.empty(),
                  "--recompute-method {} needs --recompute-granularity full; got {}", o.recompute_method,
                  recompute_text(o));
  problems.add_if(!full && o.recompute_num_layers > 1,
                  "--recompute-num-layers {} needs --recompute-granularity full; got {}; nearest legal value: 1",
                  o.recompute_num_layers, recompute_text(o));
  problems.add_if(full && o.recompute_method.empty(),
                  "--recompute-granularity full needs --recompute-method uniform or block");
  problems.add_if(!selective && !o.recompute_modules.empty(),
                  "--recompute-modules {} needs --recompute-granularity selective; got {}",
                  fmt::join(o.recompute_modules, " "), recompute_text(o));
  if (!full || o.num_layers < o.pipeline_model_parallel_size) {
    return;
  }
  try {
    const std::vector<int64_t> stages =
        split_layers(o.num_layers, o.pipeline_model_parallel_size, o.decoder_first_pipeline_num_layers,
                     o.decoder_last_pipeline_num_layers);
    const int64_t fewest = *std::ranges::min_element(stages);
    problems.add_if(o.recompute_num_layers > fewest,
                    "--recompute-num-layers {} is more than the {} layer{} of a stage (--num-layers {}, "
                    "--pipeline-model-parallel-size {}{}); nearest legal value: {}",
                    o.recompute_num_layers, fewest, fewest == 1 ? "" : "s", o.num_layers,
                    o.pipeline_model_parallel_size, uneven_text(o, fewest), fewest);
  } catch (const Error&) {  // check_grid has said it
  }
}

void check_sharding(const TrainOptions& o, Problems& problems) {
  problems.add_if(o.grad_reduce_in_bf16 && !o.bf16,
                  "--grad-reduce-in-bf16 needs --bf16: other precisions sum their gradients in fp32; leave it out");
  try {
    const int stage = zero_stage_of(o);
    problems.add_if(o.num_distributed_optimizer_instances > 1 && stage == 0,
                    "--num-distributed-optimizer-instances {} needs --zero-stage of at least 1: with {} nothing is "
                    "shared out; nearest legal value: 1",
                    o.num_distributed_optimizer_instances, zero_stage_text(o));
  } catch (const Error& error) {
    problems.add(error.what());
  }
}

void check_offload(const TrainOptions& o, Problems& problems) {
  std::string state;
  try {
    state = offload_optimizer_of(o);
  } catch (const Error& error) {
    problems.add(error.what());
    return;
  }
  const std::string values = offload_param_of(o);
  problems.add_if(
      values != "none" && legal_zero_stage(o).value_or(3) != 3,
      "--offload-param-device {} needs --zero-stage 3, which gathers weights where they are read; found {}; "
      "nearest legal value: none",
      values, zero_stage_text(o));
  problems.add_if(
      values != "none" && state == "none",
      "--offload-param-device {} needs --offload-optimizer-device cpu or nvme beside it: weights are written "
      "where they lie by the host, which updates offloaded state; nearest legal value: none",
      values);
  problems.add_if(values == "cpu" && o.device == "cpu",
                  "--offload-param-device cpu has no use with --device cpu: the weights are in host memory already; "
                  "nearest legal values: none, or nvme with --nvme-path DIR");
  problems.add_if((state == "nvme" || values == "nvme") && o.nvme_path.empty(),
                  "--{} nvme needs --nvme-path DIR, an existing directory on a disk of every host",
                  state == "nvme" ? "offload-optimizer-device" : "offload-param-device");
  problems.add_if(state != "nvme" && values != "nvme" && !o.nvme_path.empty(),
                  "--nvme-path {} is given, and nothing goes there with {}; nearest legal value: "
                  "--offload-optimizer-device nvme",
                  o.nvme_path, offload_optimizer_text(o));
  problems.add_if(state == "cpu" && o.device == "cpu",
                  "{} has no use with --device cpu: the optimizer's state is in host memory already; leave it out, or "
                  "give --offload-optimizer-device nvme with --nvme-path DIR",
                  offload_optimizer_text(o));
}

}  // namespace ashlar
