// A model driven by any list of actions: stages where the schedule puts them, several on one rank if it says so.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/prepare.h"
#include "parallel/model/gpt.h"
#include "parallel/pipeline/executor.h"
#include "parallel/zero/data_sync.h"
#include "parallel/zero/optimizer.h"
#include "tests/parallel/pipeline/watched_params.h"
#include "tests/parallel/zero/direct_update.h"

namespace ashlar::test {

inline GptConfig rig_config(int64_t num_layers, DType dtype = DType::kF32) {
  return {.num_layers = num_layers,
          .width = 16,
          .num_heads = 2,
          .ffn = 24,
          .max_positions = 8,
          .vocab = 19,
          .padded_vocab = 20,
          .tied = true,
          .dtype = dtype};
}

// The forward actions of a list, in its order.
inline Schedule forward_part(Schedule schedule) {
  for (auto& list : schedule.actions) {
    std::erase_if(list, [](const Action& action) { return action.kind != ActionKind::kForward; });
  }
  return schedule;
}

// "0F0 1F0 1B0 .." for each rank.
inline Schedule schedule_from(int num_microbatches, std::vector<int> stage_to_rank,
                              const std::vector<std::string>& lists) {
  Schedule schedule{"by hand", num_microbatches, std::move(stage_to_rank), {}};
  for (const std::string& list : lists) {
    auto& actions = schedule.actions.emplace_back();
    for (size_t begin = 0; begin < list.size();) {
      const size_t end = std::min(list.find(' ', begin), list.size());
      if (end > begin) {
        actions.push_back(parse_action(std::string_view(list).substr(begin, end - begin)));
      }
      begin = end + 1;
    }
  }
  return schedule;
}

// Micro-batch `microbatch` of step `step`: the same tokens on every placement.
inline void read_rig_batch(int64_t step, int microbatch, MicroBatch& batch) {
  for (int64_t at = 0; at < batch.tokens.num_elements(); ++at) {
    const int64_t n = step * 1000 + microbatch * 100 + at;
    batch.tokens.as<int32_t>()[at] = static_cast<int32_t>(n * 7 % 19);
    batch.targets.as<int32_t>()[at] = static_cast<int32_t>((n * 7 + 7) % 19);
    batch.mask.as<float>()[at] = n % 5 == 0 ? 0.0f : 1.0f;
  }
}

struct RigOptions {
  LoweringOptions lowering{};
  bool watched = false;  // nobody sees values or gradients that it has not asked for (WatchedParams)
};

class PipelineRig {
 public:
  static constexpr BatchShape kShape{2, 8};

  // `compute` has compute actions only; the pipeline has as many ranks as it has lists. layers_per_stage has a number
  // for each stage.
  PipelineRig(RankContext& rank, const GptConfig& config, const std::vector<int64_t>& layers_per_stage,
              const Schedule& compute, const RigOptions& options = {})
      : stream(make_stream(rank.device)),
        grid(rank, {rank.world.size() / compute.num_ranks(), compute.num_ranks(), 1}),
        chunks(make_chunks(config, layers_per_stage, compute)),
        store(make_store(rank, config.dtype)),
        sync(grid, *stream, store),
        watched(options.lowering.shard_windows, sync),
        executor(rank, grid, *stream, lower(compute, options.lowering), lower_evaluation(compute, options.lowering),
                 borrow(), kShape, options.watched ? static_cast<ParamSync&>(watched) : sync),
        optimizer(rank, grid, *stream, store, {.kind = OptimizerKind::kSgd, .weight_decay = 0, .clip_grad = 0}),
        update(rank, *stream, optimizer) {
    store.initialize(5);
    for (const auto& chunk : chunks) {
      if (options.watched) {
        watched.add(rank.device, *stream, *chunk);
      }
    }
  }

  // One step of SGD; the loss on the last stage, 0 elsewhere.
  double step(int64_t number) {
    watched.take();
    executor.train([number](int microbatch, MicroBatch& batch) { read_rig_batch(number, microbatch, batch); }, 0.01,
                   number);
    const LossSum sum = executor.read_totals();
    watched.give_back();
    sync.grads().combine_tied();
    update(0.5, 1.0);
    return sum.loss;
  }
  double evaluate(int64_t number) {
    watched.take();
    executor.evaluate([number](int microbatch, MicroBatch& batch) { read_rig_batch(number, microbatch, batch); },
                      number);
    const double loss = executor.read_totals().loss;
    watched.give_back();
    return loss;
  }

  std::unique_ptr<Stream> stream;
  ProcessGrid grid;
  std::vector<std::unique_ptr<StageChunk>> chunks;
  ParameterStore store;
  DataSync sync;
  WatchedParams watched;
  Executor executor;
  Optimizer optimizer;
  DirectUpdate update;

 private:
  static Schedule lower_evaluation(const Schedule& compute, LoweringOptions lowering) {
    lowering.grad_reduce = GradReduce::kNone;
    return lower(forward_part(compute), lowering);
  }
  static std::unique_ptr<Stream> make_stream(Device& device) {
    std::unique_ptr<Stream> made = device.create_stream();
    kernels::prepare_kernels(*made, {});
    return made;
  }
  std::vector<std::unique_ptr<StageChunk>> make_chunks(const GptConfig& config,
                                                       const std::vector<int64_t>& layers_per_stage,
                                                       const Schedule& compute) const {
    std::vector<std::unique_ptr<StageChunk>> made;
    for (int stage = 0; stage < compute.num_stages(); ++stage) {
      if (compute.stage_to_rank[static_cast<size_t>(stage)] == grid.coordinate().pipeline) {
        made.push_back(make_stage(config, layers_per_stage, stage, grid.coordinate().tensor, grid.shape().tensor));
      }
    }
    return made;
  }
  ParameterStore make_store(RankContext& rank, DType dtype) const {
    std::vector<StageParameters> stages;
    for (const auto& chunk : chunks) {
      stages.push_back(stage_parameters(*chunk));
    }
    return ParameterStore(rank.device, grid, stages, dtype);
  }
  std::vector<StageChunk*> borrow() const {
    std::vector<StageChunk*> all;
    for (const auto& chunk : chunks) {
      all.push_back(chunk.get());
    }
    return all;
  }
};

}  // namespace ashlar::test
