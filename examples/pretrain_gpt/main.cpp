// pretrain_gpt: trains a GPT on a tensor x pipeline x data grid of ranks. Read run_training() from top to bottom.
#include <csignal>
#include <iostream>

#include "examples/pretrain_gpt/dry_run.h"
#include "examples/pretrain_gpt/run_report.h"
#include "parallel/model/hf_gpt2.h"
#include "parallel/train/memory_limit.h"
#include "parallel/train/signals.h"
#include "parallel/train/start.h"
#include "parallel/train/start_device.h"
#include "parallel/train/test_faults.h"
#include "parallel/train/train_checkpoint.h"
#include "parallel/train/verify_layout.h"
#include "runtime/comm/device_world.h"

namespace ashlar {
namespace {

// Collective. Starting point of the weights: a checkpoint, a Hugging Face model, or the seed.
void load_weights(Training& training, uint64_t data_fingerprint) {
  const TrainOptions& options = training.options;
  const bool speaks = training.rank.world.rank() == 0;
  if (!options.load_hf.empty()) {
    load_hf_weights(training, options.load_hf);
    if (speaks) {
      training.rank.log.info("weights from --load-hf {}", options.load_hf);
    }
  }
  if (options.load.empty()) {
    return;
  }
  if (const auto iteration = load_training(training, options.load, data_fingerprint)) {
    if (speaks) {
      training.rank.log.info("resumed from {} at iteration {}, {} samples consumed", options.load, *iteration,
                             training.state.consumed_samples);
    }
    return;
  }
  agree(training.rank.world, [&] {
    REQUIRE(
        options.load == options.save && !options.exit_on_missing_checkpoint, ErrorCode::kCheckpoint,
        "--load {}: no whole checkpoint there; give a directory with {}/latest_checkpointed_iteration.txt, or leave "
        "--load out to start from random weights",
        options.load, options.load);
  });
  if (speaks) {
    training.rank.log.info("no checkpoint in {} yet (it is also --save): starting fresh", options.load);
  }
}

// Collective. A run that begins anew in the directory of another takes over its mark, and its sets one by one.
void warn_of_older_run(const Training& training) {
  const TrainOptions& options = training.options;
  const auto older = options.load == options.save ? std::nullopt : find_checkpoint(training.rank, options.save);
  if (older && training.rank.world.rank() == 0) {
    training.rank.log.warning(
        "--save {} holds iteration {} of an earlier run; this run does not go on from it and will replace what has the "
        "same iteration number (--load {} goes on from it)",
        options.save, *older, options.save);
  }
}

void save(Training& training, const TestFaults& faults, uint64_t data_fingerprint, RunReport& report) {
  training.rank.recorder.set_position(training.state.iteration, "save", -1);
  faults.before_checkpoint(training);
  try {
    save_training(training, training.options.save, data_fingerprint, faults.storage(training));
  } catch (const Error&) {
    if (faults.kill_on_write_fault()) {
      std::raise(SIGKILL);
    }
    throw;
  }
  report.saved(training.options.save, training.state.iteration);
}

bool due(int64_t interval, int64_t iteration) {
  return interval > 0 && iteration % interval == 0;
}

// Collective. Reports the results of submitted steps until at most `num_left` are still on their way; ends the job at
// one behind which training cannot go on. Returns the stop signal that some rank received, 0 for none.
int take_results(Training& training, const SampleSource& source, size_t num_left, RunReport& report) {
  int stop_signal = 0;
  while (training.results.num_pending() > num_left) {
    const StepResult step = take_result(training);
    report.step(step);
    if (must_end(step.outcome)) {
      throw AgreedError(ErrorCode::kNumerics, report.describe_end(step, find_non_finite(training, source)));
    }
    stop_signal = std::max(stop_signal, step.stop_signal);
  }
  return stop_signal;
}

int run_training(RankContext& rank, const TrainOptions& options, const StopSignals& signals) {
  const DataSources data = open_data(rank, options);
  Training training(rank, options);
  TestFaults faults(options);
  faults.install(training);
  load_weights(training, data.fingerprint);
  if (!options.save_hf.empty()) {
    check_hf_target(rank, options.save_hf);
  }
  if (!options.save.empty()) {
    check_save_directory(rank, options.save, checkpoint_slices(training, true));
    warn_of_older_run(training);
  }

  RunReport report(training, data);
  int64_t saved_iteration = training.state.iteration;
  int stop_signal = 0;
  bool is_last = training.state.iteration >= options.train_iters;
  if (is_last) {
    report.already_done();
  }
  while (!is_last) {
    submit_step(training, *data.train, &signals);
    const int64_t iteration = training.state.iteration;
    const bool ends_here = iteration >= options.train_iters || due(options.exit_interval, iteration);
    const bool needs_result =
        ends_here || due(options.eval_interval, iteration) || due(options.save_interval, iteration);
    stop_signal = take_results(training, *data.train, needs_result ? 0 : result_lag(training), report);
    if (stop_signal != 0) {  // the step behind the one that brought it is part of the run
      take_results(training, *data.train, 0, report);
    }
    is_last = stop_signal != 0 || ends_here;
    if (data.valid && stop_signal == 0 && (is_last || due(options.eval_interval, iteration))) {
      report.validation(evaluate(training, *data.valid, options.eval_iters));
    }
    if (!options.save.empty() && (is_last || due(options.save_interval, iteration))) {
      save(training, faults, data.fingerprint, report);
      saved_iteration = iteration;
    }
  }
  if (!options.save_hf.empty() && stop_signal == 0) {
    training.stream->synchronize();
    save_hf(rank, options.save_hf, hf_config(training.config), checkpoint_slices(training, false));
    report.saved(options.save_hf, training.state.iteration);
  }
  finish_state(training);
  faults.warn_of_what_did_not_come(training);
  report.finish(stop_signal, saved_iteration);
  return 0;
}

int run_verify_layout(RankContext& rank, const TrainOptions& options) {
  const DataSources data = open_data(rank, options);
  const LayoutReport report = verify_layout(rank, options, *data.train, options.verify_layout);
  if (!report.equal) {
    throw AgreedError(ErrorCode::kNumerics,
                      fmt::format("--verify-layout {}: {} differs from one rank: {}", options.verify_layout,
                                  grid_shape(options).text(), report.first_difference));
  }
  if (rank.world.rank() == 0) {
    std::cout << fmt::format(
        "layout verified: {} equals one rank over {} steps\n"
        "  largest relative difference: loss {:.1e}, gradient norm {:.1e}, weights {:.1e} ({}, of {} tensors)\n"
        "  replicated tensors are bit-equal on all their holders\n",
        grid_shape(options).text(), options.verify_layout, report.worst_loss, report.worst_grad_norm,
        report.worst_weights, report.worst_tensor.empty() ? "none" : report.worst_tensor, report.num_tensors);
  }
  return 0;
}

int run(RankContext& rank, const TrainOptions& given, StopSignals& signals) {
  if (given.dry_run || given.verify_layout > 0) {
    signals.release();
  }
  if (given.dry_run) {
    return dry_run(rank, given);
  }
  const TrainOptions options = resolve_for_world(rank, given);
  const DeviceRequest device = start_device(rank, options);
  agree(rank.world, [&] { check_memory_limit(options, device); });
  DeviceWorld on_device(rank, device);
  return options.verify_layout > 0 ? run_verify_layout(on_device.context(), options)
                                   : run_training(on_device.context(), options, signals);
}

int pretrain_gpt(RankContext& rank, const std::vector<std::string>& args, StopSignals& signals) {
  const ParsedCommand command = start_command(rank, args);
  if (command.print) {
    if (rank.world.rank() == 0) {
      std::cout << *command.print;
    }
    return 0;
  }
  return name_settings(command.options, [&] { return run(rank, command.options, signals); });
}

}  // namespace
}  // namespace ashlar

int main(int argc, char** argv) {
  ashlar::StopSignals signals;  // before MPI starts: a signal from now on means one step, a save, the end
  const std::vector<std::string> args(argv + 1, argv + argc);
  return ashlar::run_main(argc, argv,
                          [&](ashlar::RankContext& rank) { return ashlar::pretrain_gpt(rank, args, signals); });
}
