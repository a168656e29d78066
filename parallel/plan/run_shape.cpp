#include "parallel/plan/run_shape.h"

namespace ashlar {
namespace {

LoweringOptions lowering(const RunShape& shape, GradReduce grad_reduce) {
  return {.grad_reduce = grad_reduce,
          .shard_windows = shape.sharding.cuts_values(),
          .weight_windows = shape.config.recompute.selective.layernorm};  // its weight pass makes the norm again
}

}  // namespace

Schedule training_schedule(const RunShape& shape) {
  return lower(make_schedule(shape.schedule, shape.grid.pipeline, shape.num_microbatches),
               lowering(shape, shape.sharding.each_microbatch ? GradReduce::kMicroBatch : GradReduce::kStep));
}

Schedule evaluation_schedule(const RunShape& shape) {
  return lower(make_forward_only(shape.grid.pipeline, shape.num_microbatches), lowering(shape, GradReduce::kNone));
}

}  // namespace ashlar
