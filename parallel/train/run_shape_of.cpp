#include "parallel/train/run_shape_of.h"

#include "parallel/train/offload.h"
#include "parallel/train/training.h"

namespace ashlar {

RunShape run_shape_of(const TrainOptions& options, const DeviceRequest& device) {
  return {.config = gpt_config(options, compute_dtype(options)),
          .layers_per_stage =
              split_layers(options.num_layers, options.pipeline_model_parallel_size,
                           options.decoder_first_pipeline_num_layers, options.decoder_last_pipeline_num_layers),
          .grid = grid_shape(options),
          .schedule = options.pipeline_schedule,
          .num_microbatches = static_cast<int>(options.num_microbatches),
          .batch = batch_shape(options),
          .optimizer = options.optimizer == "sgd" ? OptimizerKind::kSgd : OptimizerKind::kAdamW,
          .sharding = sharding(options),
          .offload = offload_config(options, 0),
          .num_instances = static_cast<int>(options.num_distributed_optimizer_instances),
          .device = device.kind,
          .backend = device.backend};
}

DeviceRequest named_device(const TrainOptions& options) {
  const bool names_gpu_traffic = options.distributed_backend == "nccl" || options.distributed_backend == "staged";
  if (options.device == "cpu" || (options.device == "auto" && !names_gpu_traffic)) {
    return {};
  }
  return used_device(options, DeviceKind::kCuda);
}

DeviceRequest used_device(const TrainOptions& options, DeviceKind kind) {
  if (kind == DeviceKind::kCpu) {
    return {};
  }
  return {.kind = kind,
          .backend = options.distributed_backend == "staged" ? DeviceBackend::kStaged : DeviceBackend::kNccl};
}

}  // namespace ashlar
