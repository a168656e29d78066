// The flags that do what they say. Defaults are those of TrainOptions and stand nowhere else.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "parallel/train/flags.h"
#include "parallel/zero/loss_scaler.h"
#include "runtime/base/error.h"

namespace ashlar {
namespace {

using O = TrainOptions;

// "10" and "10m" are minutes, "30s" seconds.
void set_timeout(O& options, const std::string& text, const std::string& source) {
  const bool seconds = text.ends_with('s');
  const std::string number = seconds || text.ends_with('m') ? text.substr(0, text.size() - 1) : text;
  const std::optional<double> value = parse_real(number);
  REQUIRE(value && *value > 0, ErrorCode::kUsage, "{} expects minutes above 0 (10 or 10m) or seconds (30s), got '{}'",
          source, text);
  options.distributed_timeout_seconds = seconds ? *value : *value * 60;
}

std::string show_timeout(const O& options) {
  const double seconds = options.distributed_timeout_seconds;
  return std::fmod(seconds, 60) == 0 ? fmt::format("{}", seconds / 60) : fmt::format("{}s", seconds);
}

constexpr CustomSetting kTimeout{set_timeout, show_timeout};

constexpr CustomSetting kActivation{
    [](O& options, const std::string& text, const std::string&) { options.gelu_erf = text == "gelu-erf"; },
    [](const O& options) -> std::string { return options.gelu_erf ? "gelu-erf" : "gelu-tanh"; }};

constexpr CustomSetting kOpenaiGelu{[](O& options, const std::string& text, const std::string&) {
                                      if (text == "true") {
                                        options.gelu_erf = false;
                                      }
                                    },
                                    nullptr};

constexpr CustomSetting kZeroStage{
    [](O& options, const std::string& text, const std::string&) { options.zero_stage = parse_integer(text); },
    [](const O& options) -> std::string { return options.zero_stage ? fmt::format("{}", *options.zero_stage) : ""; }};

constexpr CustomSetting kNoNanCheck{
    [](O& options, const std::string& text, const std::string&) {
      options.check_for_nan_in_loss_and_grad = text != "true";
    },
    [](const O& options) -> std::string { return options.check_for_nan_in_loss_and_grad ? "false" : "true"; }};

// "969, 30, 1" and "969,30,1" are the same setting.
constexpr CustomSetting kSplit{[](O& options, const std::string& text, const std::string&) {
                                 options.split = text;
                                 std::erase(options.split, ' ');
                               },
                               [](const O& options) { return options.split; }};

static_assert(LossScaler::kMostSkipsAtFloor == 10, "--min-loss-scale says so");
constexpr FlagRange kLossScales{.min = kSmallestLossScale, .max = kLargestLossScale};

class Rows {
 public:
  Rows& group(FlagGroup group) {
    group_ = group;
    return *this;
  }
  Flag& row(const char* name, FlagTarget target, const char* value, const char* text) {
    rows_.push_back(Flag{.name = name, .value = value, .text = text, .group = group_, .target = target});
    return rows_.back();
  }
  Flag& parser_row(const char* name, const char* value, const char* text) {
    return row(name, std::monostate{}, value, text);
  }
  std::vector<Flag> take() { return std::move(rows_); }

 private:
  std::vector<Flag> rows_;
  FlagGroup group_ = FlagGroup::kModel;
};

void model_and_grid(Rows& t) {
  t.group(FlagGroup::kModel);
  t.row("num-layers", &O::num_layers, "N", "transformer layers")
      .within({.min = 1, .max = 100000})
      .by_default("required");
  t.row("hidden-size", &O::hidden_size, "N", "width of the model").at_least(1).by_default("required");
  t.row("num-attention-heads", &O::num_attention_heads, "N", "attention heads; must divide the width")
      .at_least(1)
      .by_default("required");
  t.row("ffn-hidden-size", &O::ffn_hidden_size, "N", "width between the two MLP products")
      .at_least(1)
      .by_default("4 x hidden size");
  t.row("kv-channels", &O::kv_channels, "N", "width of one head; only hidden size / heads is supported")
      .at_least(1)
      .by_default("hidden size / heads");
  t.row("seq-length", &O::seq_length, "N", "tokens of one sample").at_least(1).by_default("required");
  t.row("max-position-embeddings", &O::max_position_embeddings, "N", "rows of the learned position table")
      .at_least(1)
      .by_default("sequence length");
  t.row("vocab-size", &O::vocab_size, "N", "token ids are 0 to N-1 (NullTokenizer: and N, which ends documents)")
      .at_least(1)
      .by_default("of the tokenizer");
  t.row("make-vocab-size-divisible-by", &O::make_vocab_size_divisible_by, "N",
        "the table is padded to a multiple of N x tensor size; padding stays outside the softmax")
      .at_least(1);
  t.row("untie-embeddings-and-output-weights", &O::untie_embeddings_and_output_weights, "",
        "give the output layer a table of its own");
  t.row("activation", kActivation, "NAME", "GELU in its tanh or its erf form").one_of({"gelu-tanh", "gelu-erf"});
  t.row("openai-gelu", kOpenaiGelu, "", "the tanh form of GELU, as --activation gelu-tanh");
  t.row("norm-epsilon", &O::norm_epsilon, "X", "added to the variance in LayerNorm").above(0);
  t.row("init-method-std", &O::init_method_std, "X",
        "standard deviation of the starting weights; 1/sqrt(2 layers) of it for products that end a branch")
      .above(0);
  t.row("hidden-dropout", &O::hidden_dropout, "X",
        "part of the embedding's output and of each branch's that is dropped in training (Megatron's default is 0.1)")
      .within({.min = 0, .max = 1, .max_open = true});
  t.row("attention-dropout", &O::attention_dropout, "X",
        "part of the attention probabilities that is dropped in training (Megatron's default is 0.1)")
      .within({.min = 0, .max = 1, .max_open = true});
  t.row("recompute-granularity", &O::recompute_granularity, "NAME",
        "recompute activations in the backward pass: those of whole layers, or of the parts that --recompute-modules "
        "names; changes no bit of the results")
      .one_of({"full", "selective"})
      .by_default("none");
  t.row("recompute-activations", &O::recompute_activations, "",
        "as --recompute-granularity selective: layernorm and mlp_act here, where Megatron's is core_attn");
  t.row("recompute-method", &O::recompute_method, "NAME",
        "with granularity full: keep the input of every N layers of a stage, or recompute the first N of a stage, "
        "one by one (N is --recompute-num-layers)")
      .one_of({"uniform", "block"})
      .by_default("none");
  t.row("recompute-num-layers", &O::recompute_num_layers, "N", "layers, as --recompute-method says; at most a stage's")
      .at_least(1);
  t.row("recompute-modules", &O::recompute_modules, "NAME ...",
        "with granularity selective: what is recomputed (attention never stores its scores, so core_attn saves only "
        "its output)")
      .one_of({"core_attn", "layernorm", "mlp_act"})
      .by_default("layernorm mlp_act");

  t.group(FlagGroup::kGrid);
  t.row("tensor-model-parallel-size", &O::tensor_model_parallel_size, "N", "ranks that share each layer").at_least(1);
  t.row("pipeline-model-parallel-size", &O::pipeline_model_parallel_size, "N", "stages that share the layers")
      .at_least(1);
  t.row("sequence-parallel", &O::sequence_parallel, "",
        "tensor ranks share the rows of norms, dropout and residual sums too: less memory for activations, a quarter "
        "more "
        "traffic between them. Needs a --seq-length that the tensor size divides; no effect on one tensor rank");
  t.row("use-tp-pp-dp-mapping", &O::use_tp_pp_dp_mapping, "",
        "rank order tensor, pipeline, data instead of tensor, data, pipeline (fastest first)");
  t.row("decoder-first-pipeline-num-layers", &O::decoder_first_pipeline_num_layers, "N", "layers of the first stage")
      .at_least(1)
      .by_default("an even share");
  t.row("decoder-last-pipeline-num-layers", &O::decoder_last_pipeline_num_layers, "N", "layers of the last stage")
      .at_least(1)
      .by_default("an even share");
  t.row("pipeline-schedule", &O::pipeline_schedule, "NAME", "order of forward and backward passes on a stage")
      .one_of({"1f1b", "gpipe"});
  t.row("ddp-bucket-size", &O::ddp_bucket_size, "N",
        "most elements of one collective over the data axis: gradients on their way to be summed, weights that are "
        "gathered")
      .at_least(1);
  t.row(
       "zero-stage", kZeroStage, "N",
       "what is sharded over the data ranks: 0 nothing; 1 optimizer state (moments and fp32 master weights, as "
       "Megatron's distributed optimizer); 2 gradients too; 3 weights too, gathered layer by layer where they are read "
       "(as FSDP). Stages 2 and 3 reduce gradients after every micro-batch unless --grad-reduce step. At one "
       "--grad-reduce every stage gives the same bits (over NCCL, whose sums have an order of their own, equal numbers "
       "to rounding)")
      .one_of({"0", "1", "2", "3"})
      .by_default("0");
  t.row("use-distributed-optimizer", &O::use_distributed_optimizer, "",
        "as --zero-stage 1, where no other flag names a higher stage");
  t.row("data-parallel-sharding-strategy", &O::data_parallel_sharding_strategy, "NAME",
        "no_shard, optim, optim_grads and optim_grads_params: as --zero-stage 0, 1, 2 and 3; no_shard beside "
        "--use-distributed-optimizer alone changes nothing, as in Megatron")
      .one_of({"no_shard", "optim", "optim_grads", "optim_grads_params"})
      .by_default("as --zero-stage says");
  t.row("use-megatron-fsdp", &O::use_megatron_fsdp, "", "as --zero-stage 3, where no other flag names a stage");
  t.row("grad-reduce", &O::grad_reduce, "WHEN",
        "when gradients are reduced over the data ranks: once a step, or after every micro-batch, which lets "
        "--zero-stage 2 and 3 hold their shard of the gradients only, and sends them as often. The two differ by "
        "rounding")
      .one_of({"step", "micro-batch"})
      .by_default("step with --zero-stage 0 and 1, else micro-batch");
  t.row("grad-reduce-in-bf16", &O::grad_reduce_in_bf16, "",
        "with --bf16: sum gradients over micro-batches and data ranks in bf16 too: half the traffic, and 2 bytes "
        "instead of 4 for each gradient that is held. Layers still write fp32, into a place for two layers; "
        "--grad-reduce "
        "micro-batch needs 6 bytes a weight there instead of 4, so that with --zero-stage 2 and 3 on many data ranks "
        "memory grows");
  t.row("num-distributed-optimizer-instances", &O::num_distributed_optimizer_instances, "N",
        "sharding groups (as FSDP's hybrid sharding): state is sharded over the data ranks of a group and replicated "
        "in each of the N groups. Must divide the data size. Sums over another number of groups round differently")
      .at_least(1);
  t.row("overlap-grad-reduce", &O::overlap_grad_reduce, "",
        "on GPUs sum a layer's gradients while the layers before it compute; changes no sum's order");
  t.row("overlap-param-gather", &O::overlap_param_gather, "",
        "on GPUs gather a layer's weights while the layers before it compute; changes no sum's order");
  t.row("offload-optimizer-device", &O::offload_optimizer_device, "NAME",
        "where moments and fp32 master weights lie: none: with the rest; cpu: beside a GPU in host memory, where the "
        "host updates them; nvme: in files under --nvme-path, of which a few chunks are in memory. On CPUs no number "
        "changes")
      .one_of({"none", "cpu", "nvme"})
      .by_default("none");
  t.row("optimizer-cpu-offload", &O::optimizer_cpu_offload, "", "as --offload-optimizer-device cpu");
  t.row(
       "offload-param-device", &O::offload_param_device, "NAME",
       "with --zero-stage 3 and --offload-optimizer-device: where a rank's part of the weights lies between the passes "
       "that read it: none: in device memory; cpu: beside a GPU in host memory; nvme: in files under --nvme-path")
      .one_of({"none", "cpu", "nvme"})
      .by_default("none");
  t.row("nvme-path", &O::nvme_path, "DIR",
        "an existing directory on a fast disk of every host, for what goes to nvme. Its files have no "
        "names while a run works with them, and are gone with it, however it ends")
      .by_default("none");
  t.row("distributed-backend", &O::distributed_backend, "NAME",
        "what carries data between ranks: nccl for a GPU a rank; staged for GPUs by way of the host, also with several "
        "ranks on one GPU; mpi for CPUs")
      .one_of({"nccl", "staged", "mpi"}, {"gloo"})
      .by_default("nccl on GPUs, mpi on CPUs");
  t.row("distributed-timeout-minutes", kTimeout, "TIME",
        "longest wait for other ranks, at the start too (but for MPI's own), before the run ends with a report: "
        "minutes (10, 10m) or seconds (30s)");

  t.group(FlagGroup::kDevice);
  t.row("device", &O::device, "NAME",
        "where the ranks compute; auto: on GPUs when this build and every host have one for each rank, else on the CPU")
      .one_of({"cuda", "cpu", "auto"});
  t.row("bf16", &O::bf16, "",
        "weights and activations in bf16, with fp32 master weights and gradients; on a CPU bf16 is how numbers are "
        "stored, sums are fp32");
  t.row("fp16", &O::fp16, "",
        "the same in fp16, with a loss scale: a step whose gradients overflow changes no weight, and is counted as "
        "skipped");
  t.row("loss-scale", &O::loss_scale, "X", "with --fp16: a loss scale that never changes")
      .within(kLossScales)
      .by_default("dynamic");
  t.row("initial-loss-scale", &O::initial_loss_scale, "X", "with --fp16: the dynamic loss scale of the first step")
      .within(kLossScales)
      .by_default("4294967296");
  t.row("initial-scale-power", &O::initial_scale_power, "N",
        "the same as a power of two, as in DeepSpeed's files: --initial-loss-scale 2^N")
      .within({.min = -20, .max = 64})
      .by_default("none");
  t.row("min-loss-scale", &O::min_loss_scale, "X",
        "with --fp16: the dynamic loss scale stays at least so large; 10 steps in a row that overflow at it (or at a "
        "static scale) end the run")
      .within(kLossScales)
      .by_default("1");
  t.row("loss-scale-window", &O::loss_scale_window, "N",
        "with --fp16: so many steps in a row without overflow double the dynamic loss scale")
      .at_least(1)
      .by_default("1000");
  t.row("hysteresis", &O::hysteresis, "N",
        "with --fp16: the N-th overflow since the scale was last doubled halves it, and so does every one after that")
      .at_least(1)
      .by_default("2");
  t.row("gemm", &O::gemm, "NAME",
        "matrix products on GPUs: our own kernels (16-bit operands), cuBLASLt, or whichever of them fits a product")
      .one_of({"auto", "own", "cublaslt"});
  t.row("allow-tf32", &O::allow_tf32, "", "fp32 matrix products on GPUs may round their operands to TF32");
  t.row("memory-limit-gb", &O::memory_limit_gb, "X",
        "device memory of a rank in 10^9 bytes, on a CPU all that is planned; a run that needs more "
        "ends before it allocates, and says what would fit")
      .within({.min = 0, .max = 1e6, .min_open = true})
      .by_default("none");
}

void batch_and_optimizer(Rows& t) {
  t.group(FlagGroup::kBatch);
  t.row("micro-batch-size", &O::micro_batch_size, "N", "samples of one forward pass of one data rank")
      .at_least(1)
      .by_default("required");
  t.row("global-batch-size", &O::global_batch_size, "N", "samples of one step over all data ranks")
      .at_least(1)
      .by_default("micro-batch size x data size");
  t.row("train-iters", &O::train_iters, "N", "steps to train; this or --train-samples")
      .at_least(1)
      .by_default("required");
  t.row("train-samples", &O::train_samples, "N", "samples to train, rounded down to whole steps")
      .at_least(1)
      .by_default("none");
  t.row("exit-interval", &O::exit_interval, "N", "save and end when the step number is a multiple of N")
      .at_least(1)
      .by_default("none");

  t.group(FlagGroup::kOptimizer);
  t.row("optimizer", &O::optimizer, "NAME", "adam is AdamW: decay apart from the gradient")
      .one_of({"adam", "sgd"}, {"muon", "dist_muon", "lion", "soap", "adaptive_muon"});
  t.row("lr", &O::lr, "X", "highest learning rate").above(0).by_default("required");
  t.row("min-lr", &O::min_lr, "X", "learning rate at the end of the decay").at_least(0);
  t.row("lr-decay-style", &O::lr_decay_style, "NAME", "shape of the decay after warm-up")
      .one_of({"linear", "cosine", "constant"}, {"inverse-square-root", "WSD"});
  t.row("lr-decay-iters", &O::lr_decay_iters, "N", "step at which the decay ends")
      .at_least(1)
      .by_default("train iters");
  t.row("lr-decay-samples", &O::lr_decay_samples, "N", "the same in samples").at_least(1).by_default("train samples");
  t.row("lr-warmup-iters", &O::lr_warmup_iters, "N", "steps of linear warm-up").at_least(0);
  t.row("lr-warmup-samples", &O::lr_warmup_samples, "N", "the same in samples").at_least(0);
  t.row("lr-warmup-fraction", &O::lr_warmup_fraction, "X", "the same as a part of the decay steps")
      .within({.min = 0, .max = 1, .max_open = true})
      .by_default("none");
  t.row("lr-warmup-init", &O::lr_warmup_init, "X", "learning rate before the first warm-up step").at_least(0);
  t.row("adam-beta1", &O::adam_beta1, "X", "decay of the gradient's running mean")
      .within({.min = 0, .max = 1, .max_open = true});
  t.row("adam-beta2", &O::adam_beta2, "X", "decay of the squared gradient's running mean")
      .within({.min = 0, .max = 1, .max_open = true});
  t.row("adam-eps", &O::adam_eps, "X", "added to the root of the second moment").above(0);
  t.row("weight-decay", &O::weight_decay, "X", "decay of tensors of two or more dims").at_least(0);
  t.row("clip-grad", &O::clip_grad, "X", "longest global gradient norm (L2); 0 switches clipping off").at_least(0);
  t.row("no-check-for-nan-in-loss-and-grad", kNoNanCheck, "", "go on when loss or gradients are not finite");
}

void data_and_checkpoints(Rows& t) {
  t.group(FlagGroup::kData);
  t.row("data-path", &O::data_path, "PATH ...",
        "token files (PATH.idx and PATH.bin, or an llm.c shard): P, P1 P2 ... or W1 P1 W2 P2 ... with weights; cut by "
        "--split")
      .by_default("none");
  t.row("split", kSplit, "A,B,C", "parts for training, validation and test");
  t.row("train-data-path", &O::train_data_path, "PATH ...", "training data alone, in the forms of --data-path")
      .by_default("none");
  t.row("valid-data-path", &O::valid_data_path, "PATH ...", "validation data alone").by_default("none");
  t.row("mock-data", &O::mock_data, "", "made-up tokens, for trying out a grid");
  t.row("data-order", &O::data_order, "NAME", "order of the samples").one_of({"shuffle", "sequential"});
  t.row("eod-mask-loss", &O::eod_mask_loss, "", "do not count targets that follow a document's end token");
  t.row("tokenizer-type", &O::tokenizer_type, "NAME",
        "ByteTokenizer: 256 bytes and a document end; NullTokenizer: token files made elsewhere, with --vocab-size")
      .one_of({"ByteTokenizer", "NullTokenizer"}, {"GPT2BPETokenizer", "HuggingFaceTokenizer", "SentencePieceTokenizer",
                                                   "Llama2Tokenizer", "TikTokenizer"});
  t.row("seed", &O::seed, "N", "of weights and sample order").at_least(0);
  t.row("eval-interval", &O::eval_interval, "N", "steps between two validations").at_least(1).by_default("none");
  t.row("eval-iters", &O::eval_iters, "N", "steps of one validation; 0: no validation").at_least(0);

  t.group(FlagGroup::kCheckpoints);
  t.row("save", &O::save, "DIR", "write checkpoints there, one at the end of the run").by_default("none");
  t.row("save-interval", &O::save_interval, "N", "and one every N steps").at_least(1).by_default("none");
  t.row("load", &O::load, "DIR", "go on from the newest checkpoint there, whatever grid wrote it").by_default("none");
  t.row("exit-on-missing-checkpoint", &O::exit_on_missing_checkpoint, "",
        "no fresh start, even where --load is also the --save directory");
  t.row("save-hf", &O::save_hf, "DIR", "write the final weights as Hugging Face GPT-2 safetensors").by_default("none");
  t.row("load-hf", &O::load_hf, "DIR", "start from Hugging Face GPT-2 safetensors; sizes come from its config.json")
      .by_default("none");
}

void output_run_and_tests(Rows& t) {
  t.group(FlagGroup::kOutput);
  t.row("log-interval", &O::log_interval, "N", "steps between two console lines").at_least(1);
  t.row("metrics-file", &O::metrics_file, "FILE", "one JSON object per step").by_default("none");
  t.row("check-weight-hash", &O::check_weight_hash, "", "put a hash of every rank's weights into the metrics file");

  t.group(FlagGroup::kRun);
  t.parser_row("config", "FILE",
               "read flags from a TOML file (names without dashes); the command line wins, also over other names that "
               "the file has for a setting")
      .by_default("none");
  t.row("dry-run", &O::dry_run, "",
        "check all flags, print ranks, memory, traffic and FLOPs, look at no path, train nothing");
  t.row("world-size", &O::world_size, "N", "with --dry-run: as if started on N ranks")
      .at_least(1)
      .by_default("as started");
  t.row("train-tokens", &O::train_tokens, "X", "with --dry-run: days that so many tokens take (2e12)")
      .above(0)
      .by_default("of the run");
  t.row("peak-tflops", &O::peak_tflops, "X", "with --dry-run: TFLOP/s that one rank can reach at most, for the days")
      .above(0)
      .by_default("none");
  t.row("mfu", &O::mfu, "X",
        "with --dry-run: model FLOPs utilisation, the part of --peak-tflops that is reached (0.45)")
      .within({.min = 0, .max = 1, .min_open = true})
      .by_default("none");
  t.row("verify-layout", &O::verify_layout, "N", "run N steps on one rank and on the grid, and compare every weight")
      .at_least(1)
      .by_default("off");
  t.parser_row("help", "", "this text");
  t.parser_row("help-flags", "", "every known flag: done, accepted without effect, not supported yet");

  t.group(FlagGroup::kTest);
  t.row("test-hang", &O::test_hang, "rank=R,step=S,point=P",
        "rank R stops for ever before all-reduce, receive or "
        "checkpoint of step S")
      .by_default("none");
  t.row("test-nan", &O::test_nan, "rank=R,step=S", "rank R puts a NaN into its activations in step S")
      .by_default("none");
  t.row("test-overflow", &O::test_overflow, "rank=R,step=S[,tensor=NAME]",
        "rank R puts an infinity into its gradient of NAME (without NAME its first tensor) in step S")
      .by_default("none");
  t.row("test-write-fault", &O::test_write_fault, "rank=R,bytes=N[,kill=1]",
        "rank R's checkpoint file fails after N bytes: disk full, or the process ends")
      .by_default("none");
  t.row("test-offload-fault", &O::test_offload_fault, "rank=R,bytes=N[,file=F]",
        "rank R's disk is full after N bytes that went to its file of --offload-F-device nvme: optimizer (without F) "
        "or param")
      .by_default("none");
}

}  // namespace

std::vector<Flag> done_flags() {
  Rows rows;
  model_and_grid(rows);
  batch_and_optimizer(rows);
  data_and_checkpoints(rows);
  output_run_and_tests(rows);
  return rows.take();
}

}  // namespace ashlar
