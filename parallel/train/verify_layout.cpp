#include "parallel/train/verify_layout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "parallel/train/train_checkpoint.h"
#include "runtime/base/hash.h"
#include "runtime/tensor/host_copy.h"

namespace ashlar {
namespace {

struct Trace {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  double rates = 0;  // summed
  int64_t num_skipped = 0;
};

// So many steps that update. Those that an fp16 run skips while its loss scale comes down are on top.
Trace run_steps(Training& training, const SampleSource& source, int64_t steps) {
  Trace trace;
  while (trace.losses.size() < static_cast<size_t>(steps)) {
    const StepResult result = train_step(training, source);
    REQUIRE(!must_end(result.outcome), ErrorCode::kNumerics, "--verify-layout: the loss of step {} is not finite",
            result.step);
    if (result.outcome == StepOutcome::kSkipped) {
      ++trace.num_skipped;
      continue;
    }
    trace.losses.push_back(result.loss);
    trace.grad_norms.push_back(result.grad_norm);
    trace.rates += result.learning_rate;
  }
  return trace;
}

TrainOptions one_rank_options(TrainOptions options) {
  options.tensor_model_parallel_size = 1;
  options.pipeline_model_parallel_size = 1;
  options.decoder_first_pipeline_num_layers.reset();
  options.decoder_last_pipeline_num_layers.reset();
  options.num_distributed_optimizer_instances = 1;
  options.offload_optimizer_device.clear();  // where state lies changes no bit
  options.optimizer_cpu_offload = false;
  options.nvme_path.clear();
  options.test_offload_fault.clear();
  options.world_size = 0;
  options.data_parallel_size = 0;
  options.num_microbatches = 0;
  return resolve_options(options, 1);
}

double relative(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(b), 1e-30);
}

// Keeps the first difference and the worst figures.
class Comparison {
 public:
  explicit Comparison(LayoutReport& report) : report_(report) {}

  void number(const char* what, size_t step, double grid, double one, double tolerance, double& worst) {
    const double error = relative(grid, one);
    worst = std::max(worst, error);
    differ(error <= tolerance,
           fmt::format("{} of step {}: {} on the grid, {} on one rank, relative difference {:.2e}, allowed {:.0e}",
                       what, step + 1, grid, one, error, tolerance));
  }
  void differ(bool equal, const std::string& text) {
    if (!equal && report_.equal) {
      report_.equal = false;
      report_.first_difference = text;
    }
  }

 private:
  LayoutReport& report_;
};

// Sums of squares of (ours - reference) and of the reference over a piece of a tensor, in host memory.
void add_squares(const TensorPiece& piece, const float* ours, const float* reference, bool skip_keys, double sums[2]) {
  const int64_t third = piece.global.num_elements() / 3;
  for_each_run(piece, [&](int64_t position, int64_t global, int64_t length) {
    for (int64_t at = 0; at < length; ++at) {
      if (skip_keys && global + at >= third && global + at < 2 * third) {
        continue;
      }
      const double expected = static_cast<double>(reference[global + at]);
      const double error = static_cast<double>(ours[position + at]) - expected;
      sums[0] += error * error;
      sums[1] += expected * expected;
    }
  });
}

// Collective. Holders of the same slice, anywhere in the world, must hold the same bits.
void compare_replicas(Training& training, Comparison& comparison) {
  std::string mine;
  HostCopy copy(training.rank.device);
  std::vector<std::byte> scratch;
  training.sync.values().for_each_value([&](size_t entry, ConstTensorView on_device) {
    const Parameter& parameter = *training.store.entries()[entry].parameter;
    const ConstTensorView value = copy.on_host(on_device, scratch);
    mine += fmt::format("{} {} {:016x}\n", parameter.name, parameter.shard.is_split() ? parameter.shard.index : 0,
                        hash_bytes(value.data, value.bytes()));
  });
  std::map<std::string, std::pair<std::string, int>> seen;  // slice -> hash, rank
  const std::vector<std::string> all = all_gather_text(training.rank.world, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    std::string name, part, hash;
    while (lines >> name >> part >> hash) {
      const auto [found, is_new] = seen.try_emplace(name + " part " + part, hash, static_cast<int>(rank));
      comparison.differ(is_new || found->second.first == hash, fmt::format("{}: ranks {} and {} hold different bits",
                                                                           found->first, found->second.second, rank));
    }
  }
}

// The same steps on a grid of one: losses, norms and every weight.
struct Reference {
  Trace trace;
  std::map<std::string, std::vector<float>> weights;
};

Reference run_reference(RankContext& alone, const TrainOptions& options, const SampleSource& source, int64_t steps) {
  Reference reference;
  Training one(alone, one_rank_options(options));
  reference.trace = run_steps(one, source, steps);
  one.stream->synchronize();
  HostCopy copy(alone.device);
  std::vector<std::byte> scratch;
  for (const NamedSlice& slice : checkpoint_slices(one, false)) {
    const float* from = copy.on_host(slice.in_memory(SliceUse::kRead), scratch).as<float>();
    std::vector<float>& values = reference.weights[slice.name];
    values.resize(static_cast<size_t>(slice.shard.global.num_elements()));
    for_each_run(slice.piece(), [&](int64_t position, int64_t global, int64_t length) {
      std::copy_n(from + position, length, values.data() + global);
    });
  }
  return reference;
}

}  // namespace

LayoutTolerance layout_tolerance(DType dtype) {
  if (dtype == DType::kF32) {
    return {};
  }
  // 16-bit rounding turns small gradients around, and Adam makes whole steps of them: a tensor of 32 elements with one
  // of them turned in two steps differs by 0.35 moves. Opposite signs everywhere would be 2, unrelated ones 1.4.
  return {.loss = 1e-3, .grad_norm = 2e-2, .weights_adam = 0.7, .weights_sgd = 1e-1, .in_adam_moves = true};
}

LayoutReport verify_layout(RankContext& rank, const TrainOptions& options, const SampleSource& source, int64_t steps) {
  const LayoutTolerance tolerance = layout_tolerance(compute_dtype(options));
  Training grid(rank, options);
  const Trace grid_trace = run_steps(grid, source, steps);

  // Rank 0 alone runs the reference, on its device; the others wait for its first broadcast, so the deadline grows with
  // the work.
  const double deadline = rank.recorder.timeout_seconds();
  rank.recorder.set_timeout(deadline * 2 + 600);
  const int color = rank.world.rank() == 0 ? 0 : -1;
  const std::unique_ptr<Communicator> host_world = rank.world.split(color, 0, "alone");
  const std::unique_ptr<Communicator> device_world = rank.device_world.split(color, 0, "alone");
  Reference reference;
  agree(rank.world, [&] {
    if (rank.world.rank() == 0) {
      RankContext alone{rank.device, *host_world, *device_world, rank.recorder, rank.log};
      reference = run_reference(alone, options, source, steps);
    }
  });
  Trace& one_trace = reference.trace;
  rank.recorder.set_timeout(deadline);

  LayoutReport report;
  Comparison comparison(report);
  one_trace.losses.resize(static_cast<size_t>(steps));
  one_trace.grad_norms.resize(static_cast<size_t>(steps));
  rank.world.broadcast(view_of(one_trace.losses.data(), {steps}), 0, *grid.stream).wait_host();
  rank.world.broadcast(view_of(one_trace.grad_norms.data(), {steps}), 0, *grid.stream).wait_host();
  rank.world.broadcast(view_of(&one_trace.num_skipped, {1}), 0, *grid.stream).wait_host();
  comparison.differ(
      grid_trace.num_skipped == one_trace.num_skipped,
      fmt::format("{} steps were skipped on the grid, {} on one rank", grid_trace.num_skipped, one_trace.num_skipped));
  for (size_t step = 0; step < static_cast<size_t>(steps); ++step) {
    comparison.number("loss", step, grid_trace.losses[step], one_trace.losses[step], tolerance.loss, report.worst_loss);
    comparison.number("gradient norm", step, grid_trace.grad_norms[step], one_trace.grad_norms[step],
                      tolerance.grad_norm, report.worst_grad_norm);
  }

  const bool adam = options.optimizer != "sgd";
  const std::vector<NamedSlice> slices = checkpoint_slices(grid, false);
  HostCopy copy(rank.device);
  std::vector<std::byte> scratch;
  const bool in_moves = adam && tolerance.in_adam_moves;
  const double allowed = adam ? tolerance.weights_adam : tolerance.weights_sgd;
  for (const GlobalParameter& tensor : global_parameters(grid.config)) {
    std::vector<float>& values = reference.weights["model/" + tensor.name];
    values.resize(static_cast<size_t>(tensor.shape.num_elements()));
    rank.world.broadcast(view_of(values.data(), {tensor.shape.num_elements()}), 0, *grid.stream).wait_host();
    double sums[2] = {0, 0};
    for (const NamedSlice& slice : slices) {
      if (slice.owned && slice.name == "model/" + tensor.name) {
        add_squares(slice.piece(), copy.on_host(slice.in_memory(SliceUse::kRead), scratch).as<float>(), values.data(),
                    adam && tensor.name.ends_with("attn.c_attn.bias"), sums);
      }
    }
    rank.world.all_reduce(view_of(sums, {2}), ReduceOp::kSum, *grid.stream).wait_host();
    const double moved = grid_trace.rates * std::sqrt(static_cast<double>(tensor.shape.num_elements()));
    const double length = in_moves ? moved : std::sqrt(sums[1]);
    const double error = std::sqrt(sums[0]) / std::max(length, 1e-15);
    if (error > report.worst_weights) {
      report.worst_weights = error;
      report.worst_tensor = tensor.name;
    }
    comparison.differ(error <= allowed,
                      fmt::format("{}: L2 difference {:.2e} of {} after {} steps, allowed {:.0e}", tensor.name, error,
                                  in_moves ? "what Adam moves it by" : "its length", steps, allowed));
    ++report.num_tensors;
    std::vector<float>().swap(values);
  }
  compare_replicas(grid, comparison);
  return report;
}

}  // namespace ashlar
