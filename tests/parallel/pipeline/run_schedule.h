// A schedule run for some steps, and what must not depend on it: losses and every weight, to the bit.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "runtime/base/hash.h"
#include "tests/parallel/pipeline/pipeline_rig.h"
#include "tests/support/run_ranks.h"

namespace ashlar::test {

inline constexpr int kSteps = 4;

struct Outcome {
  std::vector<double> losses;
  double evaluation = 0;
  std::map<std::string, uint64_t> weights;  // hash of each tensor part

  bool operator==(const Outcome&) const = default;
};

inline Outcome run(const Schedule& compute, const std::vector<int64_t>& layers_per_stage, int tensor_size = 1,
                   const ThreadRankOptions& ranks = {}, const Recompute& recompute = {}, double dropout = 0,
                   const RigOptions& options = {}) {
  Outcome outcome;
  outcome.losses.assign(kSteps, 0);
  std::mutex mutex;
  int64_t num_layers = 0;
  for (const int64_t layers : layers_per_stage) {
    num_layers += layers;
  }
  run_ranks(
      compute.num_ranks() * tensor_size,
      [&](RankContext& rank) {
        GptConfig config = rig_config(num_layers);
        config.recompute = recompute;
        config.hidden_dropout = config.attention_dropout = dropout;
        PipelineRig rig(rank, config, layers_per_stage, compute, options);
        for (int step = 0; step < kSteps; ++step) {
          const double loss = rig.step(step);
          if (options.watched) {
            rig.watched.end_step(compute.num_microbatches);
          }
          const std::lock_guard lock(mutex);
          outcome.losses[static_cast<size_t>(step)] += rig.grid.coordinate().tensor == 0 ? loss : 0;
        }
        const double evaluation = rig.evaluate(9);
        EXPECT_EQ(rig.watched.faults(), std::vector<std::string>{});
        const std::lock_guard lock(mutex);
        outcome.evaluation += rig.grid.coordinate().tensor == 0 ? evaluation : 0;
        HostCopy copy(rank.device);
        std::vector<std::byte> scratch;
        for (const ParameterStore::Entry& entry : rig.store.entries()) {
          const Parameter& parameter = *entry.parameter;
          const ConstTensorView value = copy.on_host(parameter.value, scratch);
          const uint64_t hash = hash_bytes(value.data, value.bytes());
          const auto [found, is_new] =
              outcome.weights.try_emplace(fmt::format("{} part {}", parameter.name, parameter.shard.index), hash);
          EXPECT_EQ(found->second, hash) << parameter.name << " differs between its holders";
        }
      },
      ranks);
  return outcome;
}

}  // namespace ashlar::test
