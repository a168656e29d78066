#include "parallel/plan/traffic.h"

#include <algorithm>

#include "kernels/stat_dtype.h"
#include "parallel/plan/step_numbers.h"
#include "parallel/zero/tensor_sum.h"

namespace ashlar {
namespace {

GroupTraffic& of(RankTraffic& traffic, TrafficGroup group) {
  return traffic[static_cast<size_t>(group)];
}

void add_all_reduce(GroupTraffic& to, int64_t bytes, int64_t times = 1) {
  to.payload_bytes += bytes * times;
  to.wire_bytes += 2 * (to.num_ranks - 1) * bytes / to.num_ranks * times;
}

void add_reduce_scatter(GroupTraffic& to, int64_t bytes, int64_t times = 1) {
  to.payload_bytes += bytes * times;
  to.wire_bytes += (to.num_ranks - 1) * bytes / to.num_ranks * times;
}

void add_all_gather(GroupTraffic& to, int64_t own_bytes, int64_t times) {
  to.payload_bytes += own_bytes * times;
  to.wire_bytes += (to.num_ranks - 1) * own_bytes * times;
}

// Shoeybi et al., arXiv:1909.08053, section 3: a column-parallel linear and the row-parallel one behind it cost one
// all-reduce of [B,T,C] forward and one backward, and a block has two such pairs. Beside them: the embedding forward,
// the head's input gradient, and the head's 3 statistics of each target from every rank. A forward pass that is run
// again repeats its all-reduces, but for the last of a group, whose sum is kept.
//
// With sequence parallelism (Korthikanti et al., arXiv:2205.05198, section 4.2.2) each of these is a reduce-scatter,
// and what needs all rows gathers them: a block twice its inputs forward and again for their weights' gradients, and
// twice the gradients of its outputs; the head its input forward and again; the embedding the gradient of its output.
// Beside them, each time that gradients meet, those that every rank has a part of.
void add_tensor(const RunShape& shape, const StageChunk& chunk, GroupTraffic& to) {
  const int64_t rows = shape.batch.all_rows();
  const auto element = static_cast<int64_t>(dtype_bytes(shape.config.dtype));
  const auto stat = static_cast<int64_t>(dtype_bytes(kernels::stat_dtype(shape.config.dtype)));
  const bool is_last = chunk.is_last();
  const int64_t num_blocks = shape.layers_per_stage[static_cast<size_t>(chunk.stage())];
  int64_t num_reduces = 4 * num_blocks + (chunk.is_first() ? 1 : 0) + (is_last ? 1 : 0);
  int64_t num_gathers = 6 * num_blocks + (chunk.is_first() ? 1 : 0) + (is_last ? 2 : 0);
  for (const RecomputeGroup& group : chunk.groups()) {
    num_reduces += 2 * static_cast<int64_t>(group.end - group.begin) - 1;
    num_gathers += 2 * static_cast<int64_t>(group.end - group.begin);
  }
  if (shape.batch.splits_rows()) {
    add_reduce_scatter(to, rows * shape.config.width * element, num_reduces * shape.num_microbatches);
    add_all_gather(to, shape.batch.own_rows() * shape.config.width * element, num_gathers * shape.num_microbatches);
    add_all_reduce(to, TensorSum::num_summed(chunk.parameters()) * stat,
                   shape.sharding.stages_grads() ? shape.num_microbatches : 1);
  } else {
    add_all_reduce(to, rows * shape.config.width * element, num_reduces * shape.num_microbatches);
  }
  if (is_last) {
    add_all_gather(to, rows * 3 * stat, shape.num_microbatches);
  }
}

void add_pipeline(const RunShape& shape, const std::vector<Action>& actions, GroupTraffic& to) {
  const int64_t boundary =
      shape.batch.own_rows() * shape.config.width * static_cast<int64_t>(dtype_bytes(shape.config.dtype));
  const auto num_sends = std::ranges::count_if(actions, [](const Action& action) { return is_send(action.kind); });
  to.payload_bytes += boundary * num_sends;
  to.wire_bytes += boundary * num_sends;
}

// How often a list gathers each layer whose values are shared out: in front of every pass that reads them, but where
// the layer was read last in the same window.
std::vector<int64_t> num_gathers(const std::vector<Action>& actions, const StageChunk& chunk) {
  std::vector<int64_t> times(chunk.layers().size(), 0);
  size_t last = kNoLayer;
  for (const Action& action : actions) {
    if (action.kind == ActionKind::kUnshard) {
      last = kNoLayer;
    } else if (is_compute(action.kind)) {
      for (const size_t layer : chunk.reads(action.kind)) {
        times[layer] += layer == last ? 0 : 1;
        last = layer;
      }
    }
  }
  return times;
}

// Sums of gradients, to their owners where the state is shared out; then the sums of their blocks to all, and values
// from their owners. Buckets are ranges of the arena, so the gaps between its tensors travel too.
void add_gradients(const RunShape& shape, const StageChunk& chunk, const std::vector<Action>& actions,
                   RankTraffic& traffic) {
  const auto grad = static_cast<int64_t>(dtype_bytes(grad_dtype(shape.sharding, shape.config.dtype)));
  const auto element = static_cast<int64_t>(dtype_bytes(shape.config.dtype));
  const std::vector<FlatTensor> tensors = flat_tensors({stage_parameters(chunk)});
  const FlatLayout layout = lay_out_flat(tensors, shape.sharding);
  const Sharding& sharding = layout.sharding;
  const int64_t times = sharding.each_microbatch ? shape.num_microbatches : 1;
  GroupTraffic& data = of(traffic, TrafficGroup::kData);
  GroupTraffic sums{.num_ranks = sharding.cuts_state() ? sharding.num_shards : shape.grid.data};
  GroupTraffic gathers{.num_ranks = sharding.num_shards};
  GroupTraffic replicas{.num_ranks = shape.num_instances};
  if (!sharding.cuts_state()) {
    add_all_reduce(sums, layout.num_elements * grad, times);
  } else {
    add_reduce_scatter(sums, layout.num_elements * grad, times);
    add_all_reduce(sums, Optimizer::num_norm_blocks(chunk.parameters()) * static_cast<int64_t>(sizeof(double)));
    if (shape.num_instances > 1) {
      add_all_reduce(replicas, layout.num_elements / sharding.num_shards * grad, times);
    }
  }
  if (sharding.cuts_values()) {  // of one data rank too, where values are elsewhere
    const std::vector<int64_t> times_of = num_gathers(actions, chunk);
    for (const FlatLayer& layer : layout.layers) {
      add_all_gather(gathers, layer.num_elements() / sharding.num_shards * element, times_of[layer.layer]);
    }
  } else if (sharding.cuts_state()) {
    add_all_gather(gathers, layout.num_owned() * element, 1);
  }
  data.payload_bytes += sums.payload_bytes + gathers.payload_bytes + replicas.payload_bytes;
  data.wire_bytes += sums.wire_bytes + gathers.wire_bytes + replicas.wire_bytes;
  for (const FlatBucket& bucket : layout.buckets) {
    if (shape.grid.pipeline > 1 && tensors[bucket.first_tensor].is_tied) {
      add_all_reduce(of(traffic, TrafficGroup::kEmbedding), bucket.num_elements() / sharding.num_shards * grad);
    }
  }
}

}  // namespace

const char* traffic_group_name(TrafficGroup group) {
  static constexpr std::array<const char*, kNumTrafficGroups> kNames{"tensor",    "pipeline", "data",
                                                                     "embedding", "model",    "world"};
  return kNames[static_cast<size_t>(group)];
}

std::vector<RankTraffic> plan_traffic(const RunShape& shape) {
  const GridShape& grid = shape.grid;
  const Schedule schedule = training_schedule(shape);
  const auto num_tensors = static_cast<int64_t>(global_parameters(shape.config).size());
  std::vector<RankTraffic> stages;
  for (int stage = 0; stage < grid.pipeline; ++stage) {
    const auto chunk = make_stage(shape.config, shape.layers_per_stage, stage, 0, grid.tensor);
    RankTraffic& traffic = stages.emplace_back();
    of(traffic, TrafficGroup::kTensor).num_ranks = grid.tensor;
    of(traffic, TrafficGroup::kPipeline).num_ranks = grid.pipeline;
    of(traffic, TrafficGroup::kData).num_ranks = grid.data;
    of(traffic, TrafficGroup::kEmbedding).num_ranks = std::min(grid.pipeline, 2);
    of(traffic, TrafficGroup::kModel).num_ranks = grid.tensor * grid.pipeline;
    of(traffic, TrafficGroup::kWorld).num_ranks = grid.num_ranks();
    add_tensor(shape, *chunk, of(traffic, TrafficGroup::kTensor));
    add_pipeline(shape, schedule.actions[static_cast<size_t>(stage)], of(traffic, TrafficGroup::kPipeline));
    add_gradients(shape, *chunk, schedule.actions[static_cast<size_t>(stage)], traffic);
    add_all_reduce(of(traffic, TrafficGroup::kModel), num_tensors * grid.tensor * static_cast<int64_t>(sizeof(double)));
    add_all_reduce(of(traffic, TrafficGroup::kWorld), kNumStepCells * static_cast<int64_t>(sizeof(double)));
  }
  return stages;
}

}  // namespace ashlar
