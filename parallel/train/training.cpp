#include "parallel/train/training.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/prepare.h"
#include "parallel/train/offload.h"
#include "parallel/train/run_shape_of.h"
#include "parallel/train/start_device.h"

namespace ashlar {
namespace {

std::vector<int64_t> layers_per_stage(const TrainOptions& options) {
  return split_layers(options.num_layers, options.pipeline_model_parallel_size,
                      options.decoder_first_pipeline_num_layers, options.decoder_last_pipeline_num_layers);
}

// Before the first arena: the grid's communicators have what they need.
std::vector<std::unique_ptr<StageChunk>> make_chunks(RankContext& rank, const TrainOptions& options,
                                                     const GptConfig& config, const ProcessGrid& grid) {
  check_offload_device(rank, options);
  check_room(rank, options);
  std::vector<std::unique_ptr<StageChunk>> chunks;
  chunks.push_back(make_stage(config, layers_per_stage(options), grid.coordinate().pipeline, grid.coordinate().tensor,
                              grid.shape().tensor));
  return chunks;
}

std::vector<StageChunk*> borrow(const std::vector<std::unique_ptr<StageChunk>>& chunks) {
  std::vector<StageChunk*> all;
  for (const auto& chunk : chunks) {
    all.push_back(chunk.get());
  }
  return all;
}

kernels::KernelOptions kernel_options(const TrainOptions& options) {
  using kernels::GemmKind;
  return {.gemm = options.gemm == "own"        ? GemmKind::kOwn
                  : options.gemm == "cublaslt" ? GemmKind::kCublasLt
                                               : GemmKind::kAuto,
          .allow_tf32 = options.allow_tf32};
}

std::unique_ptr<Stream> make_stream(Device& device, const TrainOptions& options) {
  std::unique_ptr<Stream> stream = device.create_stream();
  kernels::prepare_kernels(*stream, kernel_options(options));
  return stream;
}

ParameterStore make_store(RankContext& rank, const ProcessGrid& grid, Stream& stream,
                          const std::vector<std::unique_ptr<StageChunk>>& chunks, DType dtype,
                          const TrainOptions& options) {
  std::vector<StageParameters> stages;
  for (const auto& chunk : chunks) {
    stages.push_back(stage_parameters(*chunk));
  }
  ParameterStore store(rank.device, grid, stages, dtype, sharding(options));
  const OffloadConfig config = offload_config(options, rank.world.rank());
  if (config.offloads_values()) {
    store.set_value_home(std::make_unique<ValueHome>(rank, stream, store.layout(), dtype, config));
  }
  return store;
}

OptimizerConfig optimizer_config(const TrainOptions& options) {
  return {.kind = options.optimizer == "sgd" ? OptimizerKind::kSgd : OptimizerKind::kAdamW,
          .beta1 = options.adam_beta1,
          .beta2 = options.adam_beta2,
          .epsilon = options.adam_eps,
          .weight_decay = options.weight_decay,
          .clip_grad = options.clip_grad};
}

LossScaleConfig loss_scale_config(const TrainOptions& options) {
  if (!options.fp16) {
    return {};
  }
  if (options.loss_scale != 0) {
    return {.initial = options.loss_scale};
  }
  return {.dynamic = true,
          .initial = options.initial_loss_scale,
          .min = options.min_loss_scale,
          .window = options.loss_scale_window,
          .hysteresis = options.hysteresis};
}

LrSchedule make_lr_schedule(const TrainOptions& options) {
  return {.max_lr = options.lr,
          .min_lr = options.min_lr,
          .warmup_init = options.lr_warmup_init,
          .warmup_steps = options.lr_warmup_iters,
          .decay_steps = options.lr_decay_iters,
          .style = parse_lr_decay_style(options.lr_decay_style)};
}

// Reads the micro-batches of the step that begins at a sample. Handed on by reference: a std::function that held it
// would allocate in every step.
struct StepReader {
  const Training& training;
  const SampleSource& source;
  int64_t consumed_samples;

  void operator()(int microbatch, MicroBatch& batch) const {
    fill_batch(batch, source,
               first_sample(consumed_samples, microbatch, training.grid.coordinate().data, training.grid.shape().data,
                            training.options.micro_batch_size));
  }
};

Recompute recompute_of(const TrainOptions& options) {
  Recompute recompute;
  recompute.num_layers = options.recompute_num_layers;
  if (options.recompute_granularity == "full") {
    recompute.method = options.recompute_method == "block" ? RecomputeMethod::kBlock : RecomputeMethod::kUniform;
  } else if (options.recompute_granularity == "selective") {
    const auto& modules = options.recompute_modules;
    const auto is_named = [&](const char* name) { return std::ranges::find(modules, name) != modules.end(); };
    recompute.selective = {.core_attn = is_named("core_attn"),
                           .layernorm = modules.empty() || is_named("layernorm"),
                           .mlp_act = modules.empty() || is_named("mlp_act")};
  }
  return recompute;
}

// Gradients are accumulated as sums over targets times a constant, one over this, so their size does not grow with the
// batch. The loss scale is one factor more in that constant.
double nominal_targets(const TrainOptions& options) {
  return static_cast<double>(options.global_batch_size) * static_cast<double>(options.seq_length);
}

RunShape planned_run(const RankContext& rank, const TrainOptions& options) {
  return run_shape_of(options, used_device(options, rank.device.kind()));
}

// State and counters as they were before a step that updated nothing.
void go_back(Training& training, const StepResults::Submitted& step) {
  training.results.drop_pending();
  training.state.iteration = step.iteration_before;
  training.state.consumed_samples = step.samples_before;
  training.optimizer.set_num_updates(step.updates_before);
}

// What a step was good for, and what follows for the next one. The same on every rank, because loss and norm are.
void judge(Training& training, const StepResults::Submitted& step, StepResult& result) {
  const bool ends_at_nan = training.options.check_for_nan_in_loss_and_grad;
  const bool loss_is_finite = std::isfinite(result.loss);
  if (result.finite) {
    result.outcome = StepOutcome::kUpdated;
  } else if (training.options.fp16 && (loss_is_finite || !ends_at_nan)) {
    result.outcome = StepOutcome::kSkipped;
  } else {
    result.outcome = ends_at_nan ? StepOutcome::kNotFinite : StepOutcome::kUpdated;
  }
  training.state.num_nan += result.finite || (training.options.fp16 && loss_is_finite) ? 0 : 1;
  if (result.outcome != StepOutcome::kNotFinite) {
    training.loss_scaler.step_done(result.outcome == StepOutcome::kSkipped);
  }
  training.state.num_skipped += result.outcome == StepOutcome::kUpdated ? 0 : 1;
  if (result.outcome == StepOutcome::kSkipped) {
    training.optimizer.set_num_updates(step.updates_before);
    training.results.allow_updates();
    if (training.loss_scaler.is_at_end()) {
      result.outcome = StepOutcome::kScaleAtFloor;
    }
  }
  result.loss_scale = training.loss_scaler.scale();
  if (must_end(result.outcome)) {
    go_back(training, step);
    result.consumed_samples = step.samples_before;
  }
}

}  // namespace

DType compute_dtype(const TrainOptions& options) {
  return options.bf16 ? DType::kBF16 : options.fp16 ? DType::kF16 : DType::kF32;
}

GptConfig gpt_config(const TrainOptions& options, DType dtype) {
  return {.num_layers = options.num_layers,
          .width = options.hidden_size,
          .num_heads = options.num_attention_heads,
          .ffn = options.ffn_hidden_size,
          .max_positions = options.max_position_embeddings,
          .vocab = options.vocab_size,
          .padded_vocab = padded_vocab_size(options.vocab_size, options.make_vocab_size_divisible_by,
                                            options.tensor_model_parallel_size),
          .tied = !options.untie_embeddings_and_output_weights,
          .activation = options.gelu_erf ? kernels::Activation::kGeluErf : kernels::Activation::kGeluTanh,
          .norm_epsilon = options.norm_epsilon,
          .init_std = options.init_method_std,
          .hidden_dropout = options.hidden_dropout,
          .attention_dropout = options.attention_dropout,
          .recompute = recompute_of(options),
          .sequence_parallel = options.sequence_parallel,
          .dtype = dtype};
}

BatchShape batch_shape(const TrainOptions& options) {
  return {.batch = options.micro_batch_size,
          .seq = options.seq_length,
          .row_parts = options.sequence_parallel ? options.tensor_model_parallel_size : 1};
}

GridShape grid_shape(const TrainOptions& options) {
  return {options.tensor_model_parallel_size, options.pipeline_model_parallel_size, options.data_parallel_size};
}

Sharding sharding(const TrainOptions& options) {
  const int zero_stage = zero_stage_of(options);
  const auto instances = static_cast<int>(options.num_distributed_optimizer_instances);
  return {.zero_stage = zero_stage,
          .num_shards = zero_stage == 0 ? 1 : options.data_parallel_size / instances,
          .bucket_elements = options.ddp_bucket_size,
          .each_microbatch = reduces_each_microbatch(options),
          .grads_in_bf16 = options.grad_reduce_in_bf16,
          .values_elsewhere = offload_param_of(options) != "none"};
}

RankOrder rank_order(const TrainOptions& options) {
  return options.use_tp_pp_dp_mapping ? RankOrder::kTensorPipelineData : RankOrder::kTensorDataPipeline;
}

IdleAtEnd::~IdleAtEnd() {
  try {
    stream_.synchronize();
  } catch (const std::exception&) {  // a failed device does nothing any more, and the error is on its way
  }
}

Training::Training(RankContext& rank_context, const TrainOptions& resolved)
    : options(resolved),
      config(gpt_config(resolved, compute_dtype(resolved))),
      rank(rank_context),
      stream(make_stream(rank.device, options)),
      grid(rank, grid_shape(options), rank_order(options),
           static_cast<int>(options.num_distributed_optimizer_instances)),
      chunks(make_chunks(rank, options, config, grid)),
      store(make_store(rank, grid, *stream, chunks, config.dtype, options)),
      sync(grid, *stream, store,
           {.num_microbatches = static_cast<int>(options.num_microbatches),
            .overlap_grad_reduce = options.overlap_grad_reduce,
            .overlap_param_gather = options.overlap_param_gather}),
      executor(rank, grid, *stream, training_schedule(planned_run(rank, options)),
               evaluation_schedule(planned_run(rank, options)), borrow(chunks), batch_shape(options), sync),
      optimizer(rank, grid, *stream, store, optimizer_config(options), offload_config(options, rank.world.rank())),
      lr_schedule(make_lr_schedule(options)),
      loss_scaler(loss_scale_config(options)),
      results(rank, grid, *stream),
      idle_at_end(*stream) {
  // Hosts may differ in what their kernels and file systems offer, ranks of a host do not.
  if (optimizer.offloaded() != nullptr && rank.place.host_rank == 0) {
    rank.log.info("optimizer state of each rank: {}", optimizer.offloaded()->text());
    if (store.value_home() != nullptr) {
      rank.log.info("parameters of each rank: {}", store.value_home()->text());
    }
  }
  store.initialize(static_cast<uint64_t>(options.seed),
                   [this](size_t entry, const std::vector<float>& values) { optimizer.take_masters(entry, values); });
  if (store.value_home() != nullptr) {
    optimizer.round_masters();
  }
}

void run_passes(Training& training, const SampleSource& source) {
  const TrainState& state = training.state;
  const StepReader reader{training, source, state.consumed_samples};
  training.executor.train(std::cref(reader), training.loss_scaler.scale() / nominal_targets(training.options),
                          state.iteration + 1, static_cast<uint64_t>(training.options.seed), state.consumed_samples);
  training.sync.grads().combine_tied();
}

void submit_step(Training& training, const SampleSource& source, const StopSignals* signals) {
  TrainState& state = training.state;
  const StepResults::Submitted step{.step = state.iteration + 1,
                                    .iteration_before = state.iteration,
                                    .samples_before = state.consumed_samples,
                                    .updates_before = training.optimizer.num_updates(),
                                    .learning_rate = training.lr_schedule.rate(training.optimizer.num_updates() + 1)};
  DCHECK(!training.options.fp16 || training.results.num_pending() == 0, "step {} knows no loss scale yet", step.step);
  run_passes(training, source);
  training.results.share(training.executor.totals(), signals == nullptr ? 0 : signals->received());
  training.optimizer.sum_squares();
  const UpdateRequest request{
      .nominal_targets = nominal_targets(training.options) / training.loss_scaler.scale(),
      .learning_rate = step.learning_rate,
      .skip_not_finite = training.options.check_for_nan_in_loss_and_grad || training.options.fp16};
  if (training.optimizer.offloaded() != nullptr) {  // the host waits in it for the device and for the disk
    training.rank.recorder.set_position(step.step, "UPDATE", -1);
  }
  end_job_on_error(training.rank, [&] {
    training.optimizer.update(training.results.results(), training.results.totals(), request,
                              [&training](size_t layer) { training.sync.values().updated(layer); });
  });
  training.results.submit(step);
  ++state.iteration;
  state.consumed_samples += training.options.global_batch_size;
}

void finish_state(Training& training) {
  if (OffloadedState* state = training.optimizer.offloaded()) {
    agree(training.rank.world, [&] { state->flush(); });
  }
}

StepResult take_result(Training& training) {
  const StepResults::Submitted step = training.results.oldest();
  const StepResults::Numbers numbers = training.results.take();
  StepResult result;
  result.step = step.step;
  result.consumed_samples = step.samples_before + training.options.global_batch_size;
  result.loss = numbers.results[kernels::kStepLoss];
  result.grad_norm = numbers.results[kernels::kStepGradNorm];
  result.learning_rate = step.learning_rate;
  result.num_targets = numbers.results[kernels::kStepNumTargets];
  result.finite = numbers.results[kernels::kStepFinite] != 0;
  result.stop_signal = numbers.stop_signal;
  if (result.num_targets == 0) {  // the same number on every rank, so all throw alike
    throw AgreedError(ErrorCode::kData,
                      fmt::format("step {}: no target of the global batch counts (all are masked)", step.step));
  }
  judge(training, step, result);
  return result;
}

size_t result_lag(const Training& training) {
  return training.rank.device.kind() == DeviceKind::kCpu || training.options.fp16 || training.options.check_weight_hash
             ? 0
             : 1;
}

StepResult train_step(Training& training, const SampleSource& source, const StopSignals* signals) {
  submit_step(training, source, signals);
  return take_result(training);
}

double evaluate(Training& training, const SampleSource& source, int64_t num_batches) {
  double sums[2] = {0, 0};
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    const StepReader reader{training, source, batch * training.options.global_batch_size};
    training.executor.evaluate(std::cref(reader), training.state.iteration);
    const LossSum part = training.executor.read_totals();
    if (training.grid.is_last_stage() && training.grid.coordinate().tensor == 0) {
      sums[0] += part.loss;
      sums[1] += part.num_targets;
    }
  }
  training.rank.world.all_reduce(view_of(sums, {2}), ReduceOp::kSum, *training.stream).wait_host();
  if (sums[1] == 0) {
    throw AgreedError(ErrorCode::kData, "no target of the validation batches counts (all are masked)");
  }
  return sums[0] / sums[1];
}

}  // namespace ashlar
