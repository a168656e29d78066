// Runs steps on a grid of thread ranks and keeps what can be compared to the bit.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/parallel/train/logical_tensors.h"
#include "tests/parallel/train/tiny_run.h"
#include "tests/support/run_ranks.h"

namespace ashlar::test {

struct RunTrace {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<std::vector<uint64_t>> weight_hashes;  // [world rank][step]
  LogicalTensors weights;                            // at the end

  bool same_bits(const RunTrace& other) const {
    return losses == other.losses && grad_norms == other.grad_norms && weight_hashes == other.weight_hashes;
  }
};

// Model S of the outside cases: 53440 distinct parameters.
inline TrainOptions model_s() {
  TrainOptions options = tiny_options();
  options.num_layers = 4;
  options.hidden_size = 32;
  options.num_attention_heads = 4;
  options.vocab_size = 64;
  options.make_vocab_size_divisible_by = 1;
  return options;
}

// A smaller one, for tests that also run under the sanitizers.
inline TrainOptions model_xs() {
  TrainOptions options = tiny_options();
  options.num_layers = 4;
  options.hidden_size = 16;
  options.num_attention_heads = 4;
  options.seq_length = 8;
  options.vocab_size = 19;
  options.make_vocab_size_divisible_by = 1;
  return options;
}

// Tables of 4176 values, so that tensors span blocks of the norm and data ranks share them.
inline TrainOptions model_wide() {
  TrainOptions options = model_s();
  options.hidden_size = 48;
  options.vocab_size = 87;
  options.seq_length = 8;
  return options;
}

inline TrainOptions with_sgd(TrainOptions options, double lr, double clip) {
  options.optimizer = "sgd";
  options.lr = lr;
  options.weight_decay = 0;
  options.clip_grad = clip;
  return options;
}

// Collective. Every holder of a slice of a tensor, tied copies included, holds the same bits.
inline bool replicas_are_equal(Training& training) {
  std::string mine;
  HostCopy copy(training.rank.device);
  std::vector<std::byte> scratch;
  training.sync.values().for_each_value([&](size_t entry, ConstTensorView on_device) {
    const Parameter& parameter = *training.store.entries()[entry].parameter;
    const ConstTensorView value = copy.on_host(on_device, scratch);
    mine += fmt::format("{}/{} {:016x}\n", parameter.name, parameter.shard.is_split() ? parameter.shard.index : 0,
                        hash_bytes(value.data, value.bytes()));
  });
  std::map<std::string, std::string> seen;
  bool equal = true;
  for (const std::string& text : all_gather_text(training.rank.world, mine)) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t space = text.find(' ', begin), end = text.find('\n', begin);
      const auto [found, is_new] = seen.try_emplace(text.substr(begin, space - begin), text.substr(space, end - space));
      equal = equal && found->second == text.substr(space, end - space);
      begin = end + 1;
    }
  }
  return equal;
}

// `prepare` runs once behind the construction, `behind_step` behind every step, on every rank.
struct RunHooks {
  std::function<void(Training&)> prepare;
  std::function<void(Training&, const StepResult&)> behind_step;
};

inline RunTrace run_steps(const TrainOptions& options, const GridShape& grid, const SampleSource& source, int64_t steps,
                          const ThreadRankOptions& ranks = {}, const RunHooks& hooks = {}) {
  RunTrace trace;
  trace.weight_hashes.resize(static_cast<size_t>(grid.num_ranks()));
  const TrainOptions resolved = with_grid(options, grid);
  std::mutex mutex;
  run_ranks(
      grid.num_ranks(),
      [&](RankContext& rank) {
        Training training(rank, resolved);
        if (hooks.prepare) {
          hooks.prepare(training);
        }
        const auto world_rank = static_cast<size_t>(rank.world.rank());
        for (int64_t step = 0; step < steps; ++step) {
          const StepResult result = train_step(training, source);
          REQUIRE(result.finite, ErrorCode::kNumerics, "step {} is not finite", step);
          trace.weight_hashes[world_rank].push_back(
              training.sync.values().hash_values());  // a place of this rank's own
          if (world_rank == 0) {
            trace.losses.push_back(result.loss);
            trace.grad_norms.push_back(result.grad_norm);
          }
          if (hooks.behind_step) {
            hooks.behind_step(training, result);
          }
        }
        LogicalTensors weights = gather_logical(training, TensorKind::kValue);
        if (world_rank == 0) {
          const std::lock_guard lock(mutex);
          trace.weights = std::move(weights);
        }
      },
      ranks);
  return trace;
}

inline double relative_difference(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(b), 1e-30);
}

// The largest relative difference of two rows of numbers; infinity when their lengths differ.
inline double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double worst = 0;
  for (size_t at = 0; at < a.size(); ++at) {
    worst = std::max(worst, relative_difference(a[at], b[at]));
  }
  return worst;
}

// The largest relative L2 difference of a tensor.
inline double worst_difference(const LogicalTensors& a, const LogicalTensors& b) {
  double worst = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (const auto& [name, values] : a) {
    double error = 0, norm = 0;
    const std::vector<float>& other = b.at(name);
    for (size_t at = 0; at < values.size(); ++at) {
      error += std::pow(static_cast<double>(values[at]) - static_cast<double>(other[at]), 2);
      norm += std::pow(static_cast<double>(other[at]), 2);
    }
    worst = std::max(worst, std::sqrt(error / std::max(norm, 1e-30)));
  }
  return worst;
}

}  // namespace ashlar::test
