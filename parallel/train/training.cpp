#include "parallel/train/training.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace ashlar {
namespace {

std::vector<int64_t> layers_per_stage(const TrainOptions& options) {
  return split_layers(options.num_layers, options.pipeline_model_parallel_size,
                      options.decoder_first_pipeline_num_layers, options.decoder_last_pipeline_num_layers);
}

std::vector<std::unique_ptr<StageChunk>> make_chunks(const TrainOptions& options, const GptConfig& config,
                                                     const ProcessGrid& grid) {
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

ParameterStore make_store(RankContext& rank, const ProcessGrid& grid,
                          const std::vector<std::unique_ptr<StageChunk>>& chunks, DType dtype) {
  std::vector<int> stages;
  std::vector<std::vector<Parameter*>> parameters;
  for (const auto& chunk : chunks) {
    stages.push_back(chunk->stage());
    parameters.push_back(chunk->parameters());
  }
  return ParameterStore(rank.device, grid, stages, parameters, dtype);
}

OptimizerConfig optimizer_config(const TrainOptions& options) {
  return {.kind = options.optimizer == "sgd" ? OptimizerKind::kSgd : OptimizerKind::kAdamW,
          .beta1 = options.adam_beta1,
          .beta2 = options.adam_beta2,
          .epsilon = options.adam_eps,
          .weight_decay = options.weight_decay,
          .clip_grad = options.clip_grad};
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

// What all ranks learn of each other behind a step's passes.
struct StepTotals {
  double loss = 0;
  double num_targets = 0;
  int stop_signal = 0;  // the largest over the ranks
};

StepTotals share_totals(Training& training, const LossSum& sum, const StopSignals* signals) {
  const bool speaks = training.grid.is_last_stage() && training.grid.coordinate().tensor == 0;
  double totals[2] = {speaks ? sum.loss : 0, speaks ? sum.num_targets : 0};
  int64_t signal = signals == nullptr ? 0 : signals->received();
  Communicator& world = training.grid.world();
  world.all_reduce(view_of(totals, {2}), ReduceOp::kSum, *training.stream).wait_host();
  world.all_reduce(view_of(&signal, {1}), ReduceOp::kMax, *training.stream).wait_host();
  return {totals[0], totals[1], static_cast<int>(signal)};
}

}  // namespace

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
          .dtype = dtype};
}

GridShape grid_shape(const TrainOptions& options) {
  return {options.tensor_model_parallel_size, options.pipeline_model_parallel_size, options.data_parallel_size};
}

RankOrder rank_order(const TrainOptions& options) {
  return options.use_tp_pp_dp_mapping ? RankOrder::kTensorPipelineData : RankOrder::kTensorDataPipeline;
}

Training::Training(RankContext& rank_context, const TrainOptions& resolved, DType dtype)
    : options(resolved),
      config(gpt_config(resolved, dtype)),
      rank(rank_context),
      stream(rank.device.create_stream()),
      grid(rank, grid_shape(options), rank_order(options)),
      chunks(make_chunks(options, config, grid)),
      store(make_store(rank, grid, chunks, dtype)),
      reducer(grid, *stream, store, options.ddp_bucket_size),
      executor(rank, grid, *stream,
               lower(make_schedule(options.pipeline_schedule, grid.shape().pipeline,
                                   static_cast<int>(options.num_microbatches))),
               lower(make_forward_only(grid.shape().pipeline, static_cast<int>(options.num_microbatches)),
                     {.reduce_grads = false}),
               borrow(chunks), {options.micro_batch_size, options.seq_length}, reducer),
      optimizer(rank, grid, *stream, store, optimizer_config(options)),
      lr_schedule(make_lr_schedule(options)) {
  store.initialize(static_cast<uint64_t>(options.seed));
}

StepResult train_step(Training& training, const SampleSource& source, const StopSignals* signals) {
  TrainState& state = training.state;
  // Gradients are accumulated as sums over targets times this constant, so their size does not grow with the batch.
  const double nominal_targets =
      static_cast<double>(training.options.global_batch_size) * static_cast<double>(training.options.seq_length);
  const StepReader reader{training, source, state.consumed_samples};
  const LossSum local = training.executor.train(std::cref(reader), 1.0 / nominal_targets, state.iteration + 1);
  training.reducer.combine_tied();

  const StepTotals totals = share_totals(training, local, signals);
  if (totals.num_targets == 0) {  // the same number on every rank, so all throw alike
    throw AgreedError(ErrorCode::kData, fmt::format("step {}: no target of the global batch counts (all are masked)",
                                                    state.iteration + 1));
  }
  const double grad_scale = nominal_targets / totals.num_targets;  // exactly 1 without masks
  StepResult result;
  result.loss = totals.loss / totals.num_targets;
  result.num_targets = totals.num_targets;
  result.stop_signal = totals.stop_signal;
  result.grad_norm = training.optimizer.grad_norm(grad_scale);
  result.learning_rate = training.lr_schedule.rate(training.optimizer.num_updates() + 1);
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (!result.finite && training.options.check_for_nan_in_loss_and_grad) {
    return result;
  }
  training.optimizer.update(result.learning_rate, grad_scale, result.grad_norm);
  training.stream->synchronize();
  ++state.iteration;
  state.consumed_samples += training.options.global_batch_size;
  return result;
}

double evaluate(Training& training, const SampleSource& source, int64_t num_batches) {
  LossSum sum;
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    const StepReader reader{training, source, batch * training.options.global_batch_size};
    const LossSum part = training.executor.evaluate(std::cref(reader), training.state.iteration);
    sum.loss += part.loss;
    sum.num_targets += part.num_targets;
  }
  const StepTotals totals = share_totals(training, sum, nullptr);
  if (totals.num_targets == 0) {
    throw AgreedError(ErrorCode::kData, "no target of the validation batches counts (all are masked)");
  }
  return totals.loss / totals.num_targets;
}

}  // namespace ashlar
