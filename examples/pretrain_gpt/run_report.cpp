#include "examples/pretrain_gpt/run_report.h"

#include <cmath>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#include "parallel/plan/cost.h"
#include "parallel/plan/plan_text.h"
#include "parallel/train/memory_report.h"
#include "parallel/train/run_shape_of.h"
#include "parallel/train/signals.h"

namespace ashlar {
namespace {

// x86 makes its NaNs with the sign bit set; "-nan" would look as if the sign meant something.
double plain_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

// Every setting in force, as name=value, in lines of about 110 characters.
std::string settings_text(const TrainOptions& options) {
  std::string text = "settings:";
  size_t line_start = 0;
  const nlohmann::json settings = options_json(options);
  for (const auto& setting : settings.items()) {
    const std::string shown = setting.value().is_string() ? setting.value().get<std::string>() : setting.value().dump();
    if (shown.empty() || shown == "null" || shown == "false") {
      continue;
    }
    const std::string entry = fmt::format(" {}={}", setting.key(), shown);
    if (text.size() - line_start + entry.size() > 110) {
      line_start = text.size() + 1;
      text += "\n ";
    }
    text += entry;
  }
  return text;
}

}  // namespace

RunReport::RunReport(Training& training, const DataSources& data)
    : training_(training),
      speaks_(training.rank.world.rank() == 0),
      progress_(std::cerr, speaks_ && stderr_is_terminal()),
      shown_nan_(training.state.num_nan),
      shown_skipped_(training.state.num_skipped),
      flops_per_token_(
          static_cast<double>(flops_per_token(training.config, training.options.seq_length, FlopFormula::kCausal))) {
  const TrainOptions& options = training.options;
  agree(training.rank.world, [&] {
    const bool trains = training_.state.iteration < options.train_iters;  // else the file stays as it is
    if (speaks_ && trains && !options.metrics_file.empty()) {
      file_.emplace(options.metrics_file, training_.state.iteration);
    }
  });
  if (!speaks_) {
    return;
  }
  print(settings_text(options));
  print(fmt::format("model: {} parameters, {} layers, width {}, {} heads, vocabulary {} (padded to {})",
                    count_parameters(training.config), options.num_layers, options.hidden_size,
                    options.num_attention_heads, training.config.vocab, training.config.padded_vocab));
  print(fmt::format("grid: {}, schedule {}, {} micro-batches of {} samples x {} tokens", training.grid.shape().text(),
                    options.pipeline_schedule, options.num_microbatches, options.micro_batch_size, options.seq_length));
  print(sharding_text(options));
  print(data.train->description());
  if (data.valid) {
    print(data.valid->description());
  }
  const RunShape shape = run_shape_of(options, used_device(options, training.rank.device.kind()));
  const std::vector<RankMemory> planned = plan_memory(shape);
  const size_t fullest = fullest_stage(planned, shape.device);
  print(fmt::format(
      "memory: {} planned for the fullest rank (stage {}), of it {:.3g} bytes per parameter for parameters, gradients "
      "and optimizer state",
      memory_text(planned[fullest].total()), fullest,
      static_cast<double>(planned[fullest].state()) / static_cast<double>(parameters_per_rank(shape)[fullest])));
  write_metrics(RunMetrics{.step = training.state.iteration,
                           .device = training.rank.device.name(),
                           .num_ranks = training.rank.world.size(),
                           .grid = training.grid.shape().text(),
                           .num_parameters = count_parameters(training.config),
                           .precision = std::string(dtype_name(training.config.dtype)),
                           .zero_stage = zero_stage_of(options),
                           .grad_reduce = reduces_each_microbatch(options) ? "micro-batch" : "step"});
  step_start_ = Clock::now();
}

void RunReport::step(const StepResult& result) {
  const double seconds = std::chrono::duration<double>(Clock::now() - step_start_).count();
  const TrainOptions& options = training_.options;
  const int64_t iteration = result.step;
  const int64_t step_tokens = options.global_batch_size * options.seq_length;

  StepMetrics metrics;
  metrics.step = iteration;
  metrics.total_steps = options.train_iters;
  metrics.consumed_samples = result.consumed_samples;
  metrics.consumed_tokens = result.consumed_samples * options.seq_length;
  metrics.global_batch_size = options.global_batch_size;
  metrics.loss = plain_nan(result.loss);
  metrics.grad_norm = plain_nan(result.grad_norm);
  metrics.learning_rate = result.learning_rate;
  metrics.loss_scale = result.loss_scale;
  metrics.scales_loss = options.fp16;
  metrics.total_skipped = training_.state.num_skipped;
  metrics.total_nan = training_.state.num_nan;
  metrics.step_time_s = seconds;
  metrics.tokens_per_s = static_cast<double>(step_tokens) / seconds;
  metrics.model_tflops = metrics.tokens_per_s * flops_per_token_ / training_.rank.world.size() / 1e12;
  metrics.flop_formula = flop_formula_name(FlopFormula::kCausal);
  if (options.check_weight_hash) {
    metrics.weight_hashes.resize(static_cast<size_t>(training_.rank.world.size()));
    int64_t mine = static_cast<int64_t>(training_.sync.values().hash_values());
    training_.rank.world
        .all_gather(view_of(reinterpret_cast<int64_t*>(metrics.weight_hashes.data()), {training_.rank.world.size()}),
                    view_of(&mine, {1}), *training_.stream)
        .wait_host();
  }
  if (!speaks_) {
    return;
  }
  write_metrics(metrics);
  ++num_steps_;
  seconds_ += seconds;
  loss_sum_ += result.loss;
  progress_.update(metrics);
  if (first_ || must_end(result.outcome) || iteration % options.log_interval == 0 || iteration == options.train_iters) {
    first_ = false;
    StepMetrics mean = metrics;  // Megatron's line shows the mean since the line before
    mean.loss = plain_nan(loss_sum_ / static_cast<double>(num_steps_));
    mean.step_time_s = seconds_ / static_cast<double>(num_steps_);
    mean.tokens_per_s = static_cast<double>(step_tokens) / mean.step_time_s;
    mean.model_tflops = mean.tokens_per_s * flops_per_token_ / training_.rank.world.size() / 1e12;
    mean.num_nan = training_.state.num_nan - shown_nan_;
    mean.num_skipped = training_.state.num_skipped - shown_skipped_;
    print(console_line(mean, std::chrono::system_clock::now()));
    shown_nan_ = training_.state.num_nan;
    shown_skipped_ = training_.state.num_skipped;
    num_steps_ = 0;
    seconds_ = loss_sum_ = 0;
  }
  step_start_ = Clock::now();
}

void RunReport::validation(double loss) {
  if (speaks_) {
    const ValidationMetrics metrics{training_.state.iteration, loss};
    last_validation_ = loss;
    write_metrics(metrics);
    print(validation_lines(metrics));
  }
  step_start_ = Clock::now();
}

void RunReport::saved(const std::string& directory, int64_t iteration) {
  if (speaks_) {
    print(fmt::format("saved iteration {} to {}", iteration, directory));
  }
  step_start_ = Clock::now();
}

void RunReport::already_done() {
  if (speaks_) {
    print(fmt::format("nothing to train: iteration {} of --train-iters {} is done", training_.state.iteration,
                      training_.options.train_iters));
  }
}

void RunReport::finish(int stop_signal, int64_t saved_iteration) {
  const MemoryReport memory = gather_memory_report(training_);
  if (!speaks_) {
    return;
  }
  progress_.finish();
  write_metrics(memory_metrics(memory, training_.state.iteration));
  print(memory_report_text(memory));
  if (stop_signal != 0) {
    print(fmt::format("stopped by {} after iteration {}; {}", signal_text(stop_signal), training_.state.iteration,
                      training_.options.save.empty()
                          ? std::string("nothing was saved: no --save was given")
                          : fmt::format("iteration {} is saved in {}", saved_iteration, training_.options.save)));
  }
  if (stop_signal != 0 && !training_.options.save_hf.empty()) {
    print("--save-hf " + training_.options.save_hf + " is not written: the run was stopped");
  }
  if (last_validation_) {
    print(fmt::format("final validation loss: {:.3f}", *last_validation_));
  }
}

std::string RunReport::describe_end(const StepResult& result, const std::string& where) const {
  return result.outcome == StepOutcome::kScaleAtFloor ? describe_scale_at_floor(result, where)
                                                      : describe_non_finite(result, where);
}

std::string RunReport::describe_scale_at_floor(const StepResult& result, const std::string& where) const {
  const bool is_static = training_.options.loss_scale != 0;
  return fmt::format(
      "step {}: the gradients overflowed in {} steps in a row at loss scale {}, which {}: {}. The weights are those of "
      "update {}; nothing was saved. {}; where training itself diverges, a lower --lr, a longer --lr-warmup-iters or "
      "--bf16, which needs no loss scale",
      result.step, LossScaler::kMostSkipsAtFloor, result.loss_scale,
      is_static ? "--loss-scale keeps" : "--min-loss-scale keeps it from falling below", where,
      training_.optimizer.num_updates(),
      is_static ? "Leave out --loss-scale for a dynamic scale, or give a lower one" : "Give a lower --min-loss-scale");
}

std::string RunReport::describe_non_finite(const StepResult& result, const std::string& where) const {
  return fmt::format(
      "step {}: loss {}, gradient norm {}: {}. The weights are those of step {}; nothing was saved. "
      "--no-check-for-nan-in-loss-and-grad goes on regardless",
      result.step, plain_nan(result.loss), plain_nan(result.grad_norm), where, result.step - 1);
}

template <typename Metrics>
void RunReport::write_metrics(const Metrics& metrics) {
  if (!file_) {
    return;
  }
  try {
    file_->write(metrics);
  } catch (const Error& error) {
    // Hours of training are worth more than its metrics.
    training_.rank.log.error("{}; no more metrics are written, training goes on", error.what());
    file_.reset();
  }
}

void RunReport::print(const std::string& text) {
  progress_.clear();
  std::cout << text << std::endl;
}

}  // namespace ashlar
