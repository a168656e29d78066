// What can be wrong with a set of options, and what follows from the number of ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "parallel/train/flags.h"
#include "parallel/train/options.h"
#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

namespace ashlar {
namespace {

constexpr int64_t kByteVocabulary = 257;  // 256 bytes and the document end

// Collects what is wrong, so that one run shows the user all of it.
class Problems {
 public:
  template <typename... Args>
  void add_if(bool wrong, fmt::format_string<Args...> text, Args&&... args) {
    if (wrong) {
      lines_.push_back(fmt::format(text, std::forward<Args>(args)...));
    }
  }
  void add(const std::string& line) { lines_.push_back(line); }
  void raise() const {
    if (!lines_.empty()) {
      throw Error(ErrorCode::kUsage, fmt::format("{}", fmt::join(lines_, "\n")));
    }
  }

 private:
  std::vector<std::string> lines_;
};

// "24 or 32": the multiples of step on both sides of value, without 0.
std::string multiples_around(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return below > 0 ? fmt::format("{} or {}", below, below + step) : fmt::format("{}", below + step);
}

// "1, 2, 3, 4, 6, 12"
std::string divisors(int64_t value) {
  std::vector<int64_t> all;
  for (int64_t n = 1; n * n <= value; ++n) {
    if (value % n == 0) {
      all.push_back(n);
      if (n != value / n) {
        all.push_back(value / n);
      }
    }
  }
  std::ranges::sort(all);
  return fmt::format("{}", fmt::join(all, ", "));
}

// Ranges and choices again, for options that no parser has seen.
void check_values(const TrainOptions& o, Problems& problems) {
  for (const Flag& flag : done_flags()) {
    const std::string shown = shown_value(flag, o);
    const std::string name = "--" + flag.name;
    if (shown.empty()) {
      continue;
    }
    const auto number = parse_real(shown);
    problems.add_if(flag.range && !(number && in_range(*flag.range, *number)), "{} expects a number {}, got {}", name,
                    flag.range ? range_text(*flag.range) : "", shown);
    problems.add_if(!flag.choices.empty() && !std::ranges::count(flag.choices, shown), "{} expects one of {}, got {}",
                    name, fmt::join(flag.choices, ", "), shown);
  }
}

void check_model(const TrainOptions& o, Problems& problems) {
  // A dry run without any size only maps ranks; with one of them it plans a model, and that takes all.
  const bool sized = o.num_layers > 0 || o.hidden_size > 0 || o.num_attention_heads > 0 || o.seq_length > 0;
  const bool required = o.load_hf.empty() && (sized || !o.dry_run);
  const auto require = [&](const char* name, int64_t value) {
    problems.add_if(required && value == 0, "--{} is required (or --load-hf DIR, which brings the sizes)", name);
  };
  require("num-layers", o.num_layers);
  require("hidden-size", o.hidden_size);
  require("num-attention-heads", o.num_attention_heads);
  require("seq-length", o.seq_length);
  const int64_t heads = o.num_attention_heads, width = o.hidden_size, t = o.tensor_model_parallel_size;
  if (heads > 0 && width > 0) {
    problems.add_if(width % heads != 0,
                    "--hidden-size {} is not a multiple of --num-attention-heads {}; nearest legal --hidden-size: {}",
                    width, heads, multiples_around(width, heads));
    problems.add_if(
        o.kv_channels > 0 && o.kv_channels * heads != width,
        "--kv-channels {} is not supported yet: it must be --hidden-size {} / --num-attention-heads {} = {}",
        o.kv_channels, width, heads, width / heads);
    problems.add_if(width % heads == 0 && width / heads > kernels::kMaxHeadDim,
                    "--hidden-size {} / --num-attention-heads {} gives {} values per head, attention takes at most {}; "
                    "give at least {} heads",
                    width, heads, width / heads, kernels::kMaxHeadDim, (width - 1) / kernels::kMaxHeadDim + 1);
  }
  problems.add_if(
      heads > 0 && heads % t != 0,
      "--num-attention-heads {} cannot be shared by --tensor-model-parallel-size {}; legal tensor sizes: {}; "
      "nearest legal --num-attention-heads: {}",
      heads, t, divisors(heads), multiples_around(heads, t));
  const int64_t ffn = o.ffn_hidden_size > 0 ? o.ffn_hidden_size : 4 * width;
  problems.add_if(ffn > 0 && ffn % t != 0,
                  "--ffn-hidden-size {} cannot be shared by --tensor-model-parallel-size {}; nearest legal "
                  "--ffn-hidden-size: {}",
                  ffn, t, multiples_around(ffn, t));
  problems.add_if(
      o.sequence_parallel && t > 1 && o.seq_length % t != 0,
      "--sequence-parallel cannot share --seq-length {} among --tensor-model-parallel-size {} ranks; nearest "
      "legal --seq-length: {}",
      o.seq_length, t, multiples_around(o.seq_length, t));
  problems.add_if(o.max_position_embeddings > 0 && o.seq_length > o.max_position_embeddings,
                  "--seq-length {} is longer than --max-position-embeddings {}; nearest legal --seq-length: {}",
                  o.seq_length, o.max_position_embeddings, o.max_position_embeddings);
  const bool bytes = o.tokenizer_type == "ByteTokenizer" && o.load_hf.empty();
  problems.add_if(bytes && o.vocab_size > 0 && o.vocab_size < kByteVocabulary,
                  "--vocab-size {} is too small for --tokenizer-type ByteTokenizer; nearest legal value: {}",
                  o.vocab_size, kByteVocabulary);
  problems.add_if(required && o.tokenizer_type == "NullTokenizer" && o.vocab_size == 0,
                  "--tokenizer-type NullTokenizer needs --vocab-size N (token ids are 0 to N-1, and N ends documents)");
  if (o.num_layers > 0) {
    try {
      split_layers(o.num_layers, o.pipeline_model_parallel_size, o.decoder_first_pipeline_num_layers,
                   o.decoder_last_pipeline_num_layers);
    } catch (const Error& error) {
      problems.add(error.what());
    }
  }
}

void check_recompute(const TrainOptions& o, Problems& problems) {
  const std::string granularity =
      o.recompute_activations && o.recompute_granularity.empty() ? "selective" : o.recompute_granularity;
  const std::string shown = granularity.empty() ? "none" : granularity;
  const bool full = granularity == "full";
  problems.add_if(full && o.recompute_activations,
                  "--recompute-activations (which is --recompute-granularity selective) and --recompute-granularity "
                  "full contradict each other: give one of them");
  problems.add_if(!full && (!o.recompute_method.empty() || o.recompute_num_layers > 1),
                  "--recompute-method and --recompute-num-layers need --recompute-granularity full; got {}", shown);
  problems.add_if(full && o.recompute_method.empty(),
                  "--recompute-granularity full needs --recompute-method uniform or block");
  problems.add_if(granularity != "selective" && !o.recompute_modules.empty(),
                  "--recompute-modules {} needs --recompute-granularity selective; got {}",
                  fmt::join(o.recompute_modules, " "), shown);
  for (const std::string& module : o.recompute_modules) {
    const std::vector<std::string> known{"core_attn", "layernorm", "mlp_act"};
    const auto nearest = nearest_name(module, known);
    problems.add_if(!std::ranges::count(known, module), "--recompute-modules expects some of {}; got '{}'{}",
                    fmt::join(known, ", "), module, nearest ? fmt::format("; did you mean {}?", *nearest) : "");
  }
  if (!full || o.num_layers < o.pipeline_model_parallel_size) {
    return;
  }
  try {
    const std::vector<int64_t> stages =
        split_layers(o.num_layers, o.pipeline_model_parallel_size, o.decoder_first_pipeline_num_layers,
                     o.decoder_last_pipeline_num_layers);
    const int64_t fewest = *std::ranges::min_element(stages);
    problems.add_if(o.recompute_num_layers > fewest,
                    "--recompute-num-layers {} is more than the {} layers of a stage (--num-layers {}, "
                    "--pipeline-model-parallel-size {}); nearest legal value: {}",
                    o.recompute_num_layers, fewest, o.num_layers, o.pipeline_model_parallel_size, fewest);
  } catch (const Error&) {  // check_model has said it
  }
}

void check_length_and_rate(const TrainOptions& o, Problems& problems) {
  const bool required = !o.dry_run;
  problems.add_if(required && o.micro_batch_size == 0, "--micro-batch-size is required");
  problems.add_if(o.train_iters > 0 && o.train_samples > 0,
                  "--train-iters {} and --train-samples {} are both given: give one of them", o.train_iters,
                  o.train_samples);
  problems.add_if(required && o.train_iters == 0 && o.train_samples == 0 && o.verify_layout == 0,
                  "--train-iters (or --train-samples) is required");
  problems.add_if(required && o.lr == 0, "--lr is required");
  problems.add_if(o.lr > 0 && o.min_lr > o.lr, "--min-lr {} is above --lr {}; nearest legal value: {}", o.min_lr, o.lr,
                  o.lr);
  problems.add_if(o.lr_decay_iters > 0 && o.lr_decay_samples > 0,
                  "--lr-decay-iters {} and --lr-decay-samples {} are both given: give one of them", o.lr_decay_iters,
                  o.lr_decay_samples);
  const int warmups = (o.lr_warmup_iters > 0) + (o.lr_warmup_samples > 0) + (o.lr_warmup_fraction >= 0);
  problems.add_if(warmups > 1,
                  "the warm-up is given more than once (--lr-warmup-iters {}, --lr-warmup-samples {}, "
                  "--lr-warmup-fraction {}): give one of them",
                  o.lr_warmup_iters, o.lr_warmup_samples,
                  o.lr_warmup_fraction >= 0 ? fmt::format("{}", o.lr_warmup_fraction) : "not given");
}

std::vector<double> split_parts(const std::string& split) {
  std::vector<double> parts;
  size_t start = 0;
  while (start <= split.size()) {
    const size_t comma = std::min(split.find(',', start), split.size());
    const auto part = parse_real(split.substr(start, comma - start));
    if (!part || *part < 0) {
      return {};
    }
    parts.push_back(*part);
    start = comma + 1;
  }
  parts.resize(std::max<size_t>(parts.size(), 3));
  return parts;
}

void check_data(const TrainOptions& o, Problems& problems) {
  const int sources = !o.data_path.empty() + !o.train_data_path.empty() + o.mock_data;
  problems.add_if(sources > 1,
                  "the data is given more than once (--data-path, --train-data-path, --mock-data): give one of them");
  problems.add_if(sources == 0 && !o.dry_run,
                  "no data: give --data-path PREFIX (made by preprocess_data), "
                  "--train-data-path or --mock-data");
  problems.add_if(!o.valid_data_path.empty() && o.train_data_path.empty(),
                  "--valid-data-path needs --train-data-path (with --data-path, --split sets validation data aside)");
  problems.add_if(o.eval_interval > 0 && !o.train_data_path.empty() && o.valid_data_path.empty(),
                  "--eval-interval {} needs --valid-data-path beside --train-data-path", o.eval_interval);
  const std::vector<double> parts = split_parts(o.split);
  const bool legal = parts.size() == 3 && parts[0] > 0;
  problems.add_if(
      !legal, "--split expects up to three numbers of at least 0, the first above 0, as in 969,30,1; got {}", o.split);
  problems.add_if(legal && parts[1] == 0 && o.eval_interval > 0 && !o.data_path.empty(),
                  "--eval-interval {} needs validation data, and --split {} sets none aside; for instance 969,30,1",
                  o.eval_interval, o.split);
}

void check_sharding(const TrainOptions& o, Problems& problems) {
  try {
    zero_stage_of(o);
  } catch (const Error& error) {
    problems.add(error.what());
    return;
  }
  problems.add_if(o.grad_reduce_in_bf16 && !o.bf16,
                  "--grad-reduce-in-bf16 needs --bf16: other precisions sum their gradients in fp32; leave it out");
  problems.add_if(o.num_distributed_optimizer_instances > 1 && zero_stage_of(o) == 0,
                  "--num-distributed-optimizer-instances {} needs --zero-stage of at least 1: with 0 nothing is shared "
                  "out; nearest legal value: 1",
                  o.num_distributed_optimizer_instances);
}

void check_offload(const TrainOptions& o, Problems& problems) {
  std::string device;
  try {
    device = offload_optimizer_of(o);
  } catch (const Error& error) {
    problems.add(error.what());
    return;
  }
  const std::string values = offload_param_of(o);
  problems.add_if(
      values != "none" && zero_stage_of(o) != 3,
      "--offload-param-device {} needs --zero-stage 3, which gathers weights where they are read; found {}; "
      "nearest legal value: none",
      values, zero_stage_of(o));
  problems.add_if(
      values != "none" && device == "none",
      "--offload-param-device {} needs --offload-optimizer-device cpu or nvme beside it: weights are written "
      "where they lie by the host, which updates offloaded state; nearest legal value: none",
      values);
  problems.add_if(values == "cpu" && o.device == "cpu",
                  "--offload-param-device cpu has no use with --device cpu: the weights are in host memory already; "
                  "nearest legal values: none, or nvme with --nvme-path DIR");
  problems.add_if((device == "nvme" || values == "nvme") && o.nvme_path.empty(),
                  "--{} nvme needs --nvme-path DIR, an existing directory on a disk of every host",
                  device == "nvme" ? "offload-optimizer-device" : "offload-param-device");
  problems.add_if(device != "nvme" && values != "nvme" && !o.nvme_path.empty(),
                  "--nvme-path {} is given, and nothing goes there with --offload-optimizer-device {}; nearest legal "
                  "value: --offload-optimizer-device nvme",
                  o.nvme_path, device);
  problems.add_if(
      device == "cpu" && o.device == "cpu",
      "--offload-optimizer-device cpu has no use with --device cpu: the optimizer's state is in host memory "
      "already; nearest legal values: none, or nvme with --nvme-path DIR");
  try {
    const std::optional<TestPoint> fault = parse_test_point("test-offload-fault", o.test_offload_fault);
    const bool of_values = fault && fault->file == "param";
    problems.add_if(fault && (of_values ? values : device) != "nvme",
                    "--test-offload-fault {} needs --offload-{}-device nvme", o.test_offload_fault,
                    of_values ? "param" : "optimizer");
  } catch (const Error& error) {
    problems.add(error.what());
  }
}

void check_device(const TrainOptions& o, Problems& problems) {
  problems.add_if(o.device == "cuda" && o.distributed_backend == "mpi",
                  "--device cuda and --distributed-backend mpi contradict each other: MPI carries host memory; give "
                  "--distributed-backend nccl or staged, or --device cpu");
  problems.add_if(o.device == "cpu" && !o.distributed_backend.empty() && o.distributed_backend != "mpi",
                  "--device cpu and --distributed-backend {} contradict each other: {} carries memory of GPUs; give "
                  "--distributed-backend mpi, or --device cuda",
                  o.distributed_backend, o.distributed_backend);
  problems.add_if(o.gemm == "own" && !o.bf16 && !o.fp16,
                  "--gemm own needs --bf16 or --fp16: our kernels take 16-bit operands; give --gemm auto or cublaslt "
                  "for fp32");
  problems.add_if(o.allow_tf32 && (o.bf16 || o.fp16),
                  "--allow-tf32 and --{} contradict each other: TF32 is about products of fp32 operands; give one of "
                  "them",
                  o.bf16 ? "bf16" : "fp16");
}

// What a dynamic loss scale is made of, as far as it was given.
std::vector<std::string> dynamic_scale_flags(const TrainOptions& o, bool without_neutral) {
  std::vector<std::string> flags;
  const auto add = [&](const char* name, auto value, auto neutral) {
    if (value != 0 && !(without_neutral && value == neutral)) {
      flags.push_back(fmt::format("--{} {}", name, value));
    }
  };
  add("initial-loss-scale", o.initial_loss_scale, kDefaultInitialLossScale);
  if (o.initial_scale_power) {
    flags.push_back(fmt::format("--initial-scale-power {}", *o.initial_scale_power));
  }
  add("min-loss-scale", o.min_loss_scale, kDefaultMinLossScale);
  add("loss-scale-window", o.loss_scale_window, kDefaultLossScaleWindow);
  add("hysteresis", o.hysteresis, kDefaultHysteresis);
  return flags;
}

double initial_loss_scale(const TrainOptions& o) {
  return o.initial_scale_power       ? std::ldexp(1.0, static_cast<int>(*o.initial_scale_power))
         : o.initial_loss_scale != 0 ? o.initial_loss_scale
                                     : kDefaultInitialLossScale;
}

void check_loss_scale(const TrainOptions& o, Problems& problems) {
  problems.add_if(o.bf16 && o.fp16, "--bf16 and --fp16 contradict each other: give one of them");
  if (!o.fp16) {
    // Scripts of other systems carry Megatron's defaults along.
    std::vector<std::string> flags = dynamic_scale_flags(o, true);
    if (o.loss_scale != 0 && o.loss_scale != 1) {
      flags.insert(flags.begin(), fmt::format("--loss-scale {}", o.loss_scale));
    }
    problems.add_if(!flags.empty(), "{} without --fp16: fp32 and --bf16 need no loss scale; leave it out",
                    fmt::join(flags, ", "));
    return;
  }
  const std::vector<std::string> flags = dynamic_scale_flags(o, false);
  problems.add_if(
      o.loss_scale != 0 && !flags.empty(),
      "--loss-scale {} is a static scale, and {} belong to a dynamic one: leave out the former or the latter",
      o.loss_scale, fmt::join(flags, ", "));
  problems.add_if(o.initial_loss_scale != 0 && o.initial_scale_power,
                  "--initial-loss-scale {} and --initial-scale-power {} (2^{}) are two names for one setting: give one "
                  "of them",
                  o.initial_loss_scale, o.initial_scale_power.value_or(0), o.initial_scale_power.value_or(0));
  const double initial = initial_loss_scale(o);
  const double least = o.min_loss_scale != 0 ? o.min_loss_scale : kDefaultMinLossScale;
  problems.add_if(o.loss_scale == 0 && least > initial,
                  "--min-loss-scale {}{} is above the initial loss scale {} (--initial-loss-scale or "
                  "--initial-scale-power); nearest legal --min-loss-scale: {}",
                  least, o.min_loss_scale != 0 ? "" : ", the default,", initial, initial);
}

void resolve_loss_scale(TrainOptions& o) {
  if (!o.fp16 || o.loss_scale != 0) {
    return;
  }
  o.initial_loss_scale = initial_loss_scale(o);
  o.initial_scale_power.reset();
  o.min_loss_scale = o.min_loss_scale != 0 ? o.min_loss_scale : kDefaultMinLossScale;
  o.loss_scale_window = o.loss_scale_window != 0 ? o.loss_scale_window : kDefaultLossScaleWindow;
  o.hysteresis = o.hysteresis != 0 ? o.hysteresis : kDefaultHysteresis;
}

void check_files_and_run(const TrainOptions& o, Problems& problems) {
  problems.add_if(o.save_interval > 0 && o.save.empty(), "--save-interval {} needs --save DIR", o.save_interval);
  // With --load DIR --save DIR the Hugging Face weights are the fresh start, and later runs go on from DIR.
  problems.add_if(!o.load.empty() && !o.load_hf.empty() && o.load != o.save,
                  "--load {} and --load-hf {} both bring weights: give one of them, or --load the --save directory",
                  o.load, o.load_hf);
  // Resolved options carry the world size they were resolved for.
  problems.add_if(o.world_size > 0 && !o.dry_run && o.data_parallel_size == 0,
                  "--world-size {} is for --dry-run; a run has as many ranks as it is started with: mpirun -np {}",
                  o.world_size, o.world_size);
  problems.add_if((o.peak_tflops > 0) != (o.mfu > 0) || (o.train_tokens > 0 && o.mfu == 0),
                  "the days of a training need --peak-tflops X and --mfu X (and --train-tokens X, where --train-iters "
                  "does not say how many); got --peak-tflops {}, --mfu {}",
                  o.peak_tflops, o.mfu);
  const std::pair<const char*, const std::string*> points[] = {{"test-hang", &o.test_hang},
                                                               {"test-nan", &o.test_nan},
                                                               {"test-overflow", &o.test_overflow},
                                                               {"test-write-fault", &o.test_write_fault}};
  for (const auto& [flag, text] : points) {
    try {
      parse_test_point(flag, *text);
    } catch (const Error& error) {
      problems.add(error.what());
    }
  }
}

// Sets o.data_parallel_size.
void resolve_grid(TrainOptions& o, int world_size) {
  const int64_t model = int64_t{o.tensor_model_parallel_size} * o.pipeline_model_parallel_size;
  const bool asked = o.dry_run && o.world_size > 0;
  const std::string grid = fmt::format("--tensor-model-parallel-size {} x --pipeline-model-parallel-size {} = {}",
                                       o.tensor_model_parallel_size, o.pipeline_model_parallel_size, model);
  if (world_size % model != 0) {
    const int64_t below = world_size / model * model;
    std::string starts = fmt::format("{}{}", asked ? "--world-size " : "mpirun -np ", below + model);
    if (below > 0) {
      starts = fmt::format("{}{} or ", asked ? "--world-size " : "mpirun -np ", below) + starts;
    }
    throw Error(ErrorCode::kUsage,
                fmt::format("the world has {} rank{}, which is no multiple of {} (each data rank is one such grid); "
                            "nearest legal: {}",
                            world_size, world_size == 1 ? "" : "s", grid, starts));
  }
  o.data_parallel_size = static_cast<int>(world_size / model);
  o.world_size = world_size;
  const int64_t instances = o.num_distributed_optimizer_instances;
  if (o.data_parallel_size % instances != 0) {
    int64_t below = std::min<int64_t>(instances, o.data_parallel_size);
    while (o.data_parallel_size % below != 0) {
      --below;
    }
    throw Error(ErrorCode::kUsage,
                fmt::format("--num-distributed-optimizer-instances {} does not divide the data size {} (= {} ranks / "
                            "tensor {} / pipeline {}); nearest legal value: {}",
                            instances, o.data_parallel_size, world_size, o.tensor_model_parallel_size,
                            o.pipeline_model_parallel_size, below));
  }
}

void resolve_batch(TrainOptions& o) {
  if (o.micro_batch_size == 0) {
    return;  // a dry run without batches
  }
  // Far beyond any memory, and small enough that no product of sizes wraps around.
  constexpr int64_t kMostSamples = int64_t{1} << 31;
  REQUIRE(o.micro_batch_size <= kMostSamples && o.global_batch_size <= kMostSamples, ErrorCode::kUsage,
          "--micro-batch-size {} and --global-batch-size {}: at most {} samples are possible", o.micro_batch_size,
          o.global_batch_size, kMostSamples);
  const int64_t unit = o.micro_batch_size * o.data_parallel_size;
  if (o.global_batch_size == 0) {
    o.global_batch_size = unit;
  }
  REQUIRE(o.global_batch_size % unit == 0, ErrorCode::kUsage,
          "--global-batch-size {} is no multiple of --micro-batch-size {} x data size {} = {} (data size = {} ranks / "
          "tensor {} / pipeline {}); nearest legal --global-batch-size: {}",
          o.global_batch_size, o.micro_batch_size, o.data_parallel_size, unit, o.world_size,
          o.tensor_model_parallel_size, o.pipeline_model_parallel_size, multiples_around(o.global_batch_size, unit));
  o.num_microbatches = o.global_batch_size / unit;
}

int64_t samples_to_steps(const char* flag, int64_t samples, int64_t global_batch_size) {
  REQUIRE(samples >= global_batch_size, ErrorCode::kUsage,
          "--{} {} is less than one step of --global-batch-size {}; nearest legal value: {}", flag, samples,
          global_batch_size, global_batch_size);
  return samples / global_batch_size;
}

void resolve_length(TrainOptions& o) {
  if (o.global_batch_size > 0) {
    if (o.train_samples > 0) {
      o.train_iters = samples_to_steps("train-samples", o.train_samples, o.global_batch_size);
    }
    if (o.lr_decay_samples > 0) {
      o.lr_decay_iters = samples_to_steps("lr-decay-samples", o.lr_decay_samples, o.global_batch_size);
    }
    if (o.lr_warmup_samples > 0) {
      o.lr_warmup_iters = samples_to_steps("lr-warmup-samples", o.lr_warmup_samples, o.global_batch_size);
    }
    o.train_samples = o.lr_decay_samples = o.lr_warmup_samples = 0;
  }
  if (o.train_iters == 0) {
    o.train_iters = o.verify_layout;
  }
  if (o.lr_decay_iters == 0) {
    o.lr_decay_iters = o.train_iters;
  }
  if (o.lr_warmup_fraction >= 0 && o.lr_decay_iters > 0) {
    o.lr_warmup_iters = std::llround(o.lr_warmup_fraction * static_cast<double>(o.lr_decay_iters));
    o.lr_warmup_fraction = -1;
  }
  REQUIRE(o.lr_decay_style == "constant" || o.lr_decay_iters == 0 || o.lr_warmup_iters < o.lr_decay_iters,
          ErrorCode::kUsage,
          "the warm-up of {} steps (--lr-warmup-iters, -samples or -fraction) leaves nothing of the {} steps of decay "
          "(--lr-decay-iters, by default --train-iters); nearest legal --lr-warmup-iters: {}",
          o.lr_warmup_iters, o.lr_decay_iters, o.lr_decay_iters - 1);
}

}  // namespace

void validate_options(const TrainOptions& options) {
  Problems values;
  check_values(options, values);
  values.raise();  // the checks below divide by some of them
  Problems problems;
  check_model(options, problems);
  check_recompute(options, problems);
  check_length_and_rate(options, problems);
  check_data(options, problems);
  check_device(options, problems);
  check_loss_scale(options, problems);
  check_sharding(options, problems);
  check_offload(options, problems);
  check_files_and_run(options, problems);
  problems.raise();
}

TrainOptions resolve_options(const TrainOptions& options, int world_size) {
  validate_options(options);
  TrainOptions o = options;
  if (o.ffn_hidden_size == 0) {
    o.ffn_hidden_size = 4 * o.hidden_size;
  }
  if (o.recompute_activations) {
    o.recompute_granularity = "selective";
  }
  if (o.kv_channels == 0 && o.num_attention_heads > 0) {
    o.kv_channels = o.hidden_size / o.num_attention_heads;
  }
  if (o.max_position_embeddings == 0) {
    o.max_position_embeddings = o.seq_length;
  }
  if (o.vocab_size == 0 && o.tokenizer_type == "ByteTokenizer" && o.load_hf.empty()) {
    o.vocab_size = kByteVocabulary;
  }
  resolve_grid(o, o.dry_run && o.world_size > 0 ? o.world_size : world_size);
  resolve_batch(o);
  resolve_length(o);
  resolve_loss_scale(o);
  return o;
}

}  // namespace ashlar
