// The settings of a training run, under the names of Megatron's flags where Megatron has one.
//
// Life of a setting: parse_train_options (one rank's arguments) -> validate_options (what needs no world size) ->
// resolve_options (fills what depends on the number of ranks) -> the program. Every flag is one row of flags.h's table.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ashlar {

// Megatron's dynamic loss scale.
inline constexpr double kDefaultInitialLossScale = 4294967296;  // 2^32
inline constexpr double kDefaultMinLossScale = 1;
inline constexpr int64_t kDefaultLossScaleWindow = 1000;
inline constexpr int64_t kDefaultHysteresis = 2;

struct TrainOptions {
  // model
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t ffn_hidden_size = 0;  // 0: 4 * hidden_size
  int64_t kv_channels = 0;      // 0: hidden_size / num_attention_heads, the only legal value
  int64_t seq_length = 0;
  int64_t max_position_embeddings = 0;  // 0: seq_length
  int64_t vocab_size = 0;               // 0: from the tokenizer
  int64_t make_vocab_size_divisible_by = 128;
  bool untie_embeddings_and_output_weights = false;
  bool gelu_erf = false;  // --activation gelu-erf; default is the tanh form
  double norm_epsilon = 1e-5;
  double init_method_std = 0.02;
  double hidden_dropout = 0;
  double attention_dropout = 0;
  std::string recompute_granularity;           // full, selective; empty: activations are kept
  bool recompute_activations = false;          // another name of selective, resolved into recompute_granularity
  std::string recompute_method;                // of full: uniform, block
  int64_t recompute_num_layers = 1;            // of full
  std::vector<std::string> recompute_modules;  // of selective: core_attn, layernorm, mlp_act; empty: the last two

  // grid
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  bool sequence_parallel = false;  // without effect on one tensor rank
  bool use_tp_pp_dp_mapping = false;
  std::optional<int64_t> decoder_first_pipeline_num_layers;
  std::optional<int64_t> decoder_last_pipeline_num_layers;
  std::string pipeline_schedule = "1f1b";
  int64_t ddp_bucket_size = 40000000;  // elements
  std::string grad_reduce;             // step, micro-batch; empty: as the ZeRO stage says
  bool grad_reduce_in_bf16 = false;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  int64_t num_distributed_optimizer_instances = 1;
  // Four names for one setting; zero_stage_of() has it.
  std::optional<int64_t> zero_stage;
  bool use_distributed_optimizer = false;
  bool use_megatron_fsdp = false;
  std::string data_parallel_sharding_strategy;  // no_shard, optim, optim_grads, optim_grads_params; empty: not given

  // Two names for one setting; offload_optimizer_of() has it.
  std::string offload_optimizer_device;  // none, cpu, nvme; empty: not given
  bool optimizer_cpu_offload = false;
  std::string offload_param_device;  // none, cpu, nvme; empty: none
  std::string nvme_path;

  // batch and length
  int64_t micro_batch_size = 0;
  int64_t global_batch_size = 0;  // 0: micro_batch_size * data size
  int64_t train_iters = 0;
  int64_t train_samples = 0;
  int64_t exit_interval = 0;

  // optimizer
  std::string optimizer = "adam";
  double lr = 0;
  double min_lr = 0;
  std::string lr_decay_style = "linear";  // constant, linear, cosine
  int64_t lr_decay_iters = 0;             // 0: train_iters
  int64_t lr_decay_samples = 0;           // resolved into lr_decay_iters
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;   // resolved into lr_warmup_iters
  double lr_warmup_fraction = -1;  // of lr_decay_iters; -1: not given; resolved into lr_warmup_iters
  double lr_warmup_init = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double weight_decay = 0.01;
  double clip_grad = 1.0;  // 0: off
  bool check_for_nan_in_loss_and_grad = true;

  // data
  std::vector<std::string> data_path;
  std::string split = "969,30,1";
  std::vector<std::string> train_data_path, valid_data_path;  // llm.c shards or prefixes, instead of --data-path
  bool mock_data = false;
  std::string data_order = "shuffle";  // shuffle, sequential
  bool eod_mask_loss = false;
  std::string tokenizer_type = "ByteTokenizer";
  int64_t seed = 1234;

  // evaluation, logs, files
  int64_t eval_interval = 0;
  int64_t eval_iters = 100;
  int64_t log_interval = 100;
  std::string metrics_file;
  bool check_weight_hash = false;
  std::string save, load;
  int64_t save_interval = 0;
  bool exit_on_missing_checkpoint = false;  // no fresh start, even where --load is also --save
  std::string save_hf, load_hf;
  double distributed_timeout_seconds = 600;

  // devices and numbers
  std::string device = "auto";      // cuda, cpu, auto; DeviceWorld's kind once the ranks have met
  std::string distributed_backend;  // nccl, staged, mpi; empty: nccl on GPUs, mpi on CPUs
  std::string gemm = "auto";        // auto, own, cublaslt
  bool allow_tf32 = false;
  bool bf16 = false;
  bool fp16 = false;
  double loss_scale = 0;                       // with fp16: static; 0: dynamic
  double initial_loss_scale = 0;               // dynamic; 0: kDefaultInitialLossScale (so are the others of a 0)
  std::optional<int64_t> initial_scale_power;  // its logarithm to base 2; resolved into initial_loss_scale
  double min_loss_scale = 0;
  int64_t loss_scale_window = 0;
  int64_t hysteresis = 0;
  double memory_limit_gb = 0;  // 10^9 bytes of device memory a rank; 0: no limit

  // actions other than training
  bool dry_run = false;
  int world_size = 0;         // with dry_run: plan for this many ranks
  double train_tokens = 0;    // with dry_run: say how long they take; 0: those of the run
  double peak_tflops = 0;     // of one rank
  double mfu = 0;             // part of the peak
  int64_t verify_layout = 0;  // steps

  // faults on demand, for tests: see TestPoint
  std::string test_hang, test_nan, test_overflow, test_write_fault, test_offload_fault;

  // Settings that were not given as flags: by name the file in which they stand. For messages only.
  std::map<std::string, std::string> files;

  // filled by resolve_options
  int data_parallel_size = 0;
  int64_t num_microbatches = 0;  // of one data rank in one step
};

struct ParsedCommand {
  TrainOptions options;
  std::optional<std::string> print;  // --help and its like: print this and exit 0
  std::vector<std::string> given;    // names (no dashes) of the flags given, on the command line or in the file
  std::vector<std::string> notes;    // lines to log: flags without effect, settings that nothing uses
};

// Pure but for reading --config FILE. `args` without the program's name. Throws Error(kUsage) that names the flag, what
// it expects, what was given and, for unknown flags, the nearest known one.
ParsedCommand parse_train_options(const std::vector<std::string>& args);

// Pure. Throws one Error(kUsage) that lists everything wrong that can be seen without knowing the number of ranks. With
// load_hf the sizes of the model may still be 0: call again after the config.json has filled them.
void validate_options(const TrainOptions& options);

// Pure. Checks what depends on the number of ranks (and again all of validate_options), and returns the options with
// every 0 that stands for a derived value replaced: ffn_hidden_size, kv_channels, max_position_embeddings,
// data_parallel_size, global_batch_size, num_microbatches, train_iters, lr_decay_iters, lr_warmup_iters (their _samples
// and _fraction become "not given"), world_size, and with fp16 what a dynamic loss scale needs. Throws Error(kUsage).
TrainOptions resolve_options(const TrainOptions& options, int world_size);

// Pure. A message about settings, with each name as the user wrote it: what stands in a file is not called a flag, and
// the file is named.
std::string in_users_words(const TrainOptions& options, const std::string& message);

// Pure. Every setting under its flag's name without dashes; the values of options that are not resolved yet can be
// given back as a --config file. Kept in checkpoints, compared between ranks.
nlohmann::json options_json(const TrainOptions& options);

// Pure. What the data ranks share out: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too. Throws
// Error(kUsage) when two names for it contradict each other.
int zero_stage_of(const TrainOptions& options);
// Pure. The flag that says so, as it was given.
std::string zero_stage_text(const TrainOptions& options);
// Pure. Whether gradients are reduced after every micro-batch: as --grad-reduce says, else where gradients are sharded.
bool reduces_each_microbatch(const TrainOptions& options);
// Pure. One line: what is sharded over how many data ranks, when gradients are reduced, and what else saves memory. Of
// resolved options.
std::string sharding_text(const TrainOptions& options);

// Pure. Where the optimizer's state lies: none (with the rest), cpu or nvme. Throws Error(kUsage) when two names for it
// contradict each other.
std::string offload_optimizer_of(const TrainOptions& options);
// Pure. The flag that says so, as it was given.
std::string offload_optimizer_text(const TrainOptions& options);
// Pure. Where values lie: none (in device memory), cpu or nvme.
std::string offload_param_of(const TrainOptions& options);

// Pure. Layers of each stage, in order; their sum is num_layers and each is at least 1. first and last are
// --decoder-first/last-pipeline-num-layers. The others share what is left evenly; where it does not divide, the earlier
// of them hold one more. Throws Error(kUsage) when a stage would be empty.
std::vector<int64_t> split_layers(int64_t num_layers, int num_stages, std::optional<int64_t> first = {},
                                  std::optional<int64_t> last = {});

// Pure. Rows of the embedding table: vocab_size rounded up to a multiple of divisible_by * tensor_size.
int64_t padded_vocab_size(int64_t vocab_size, int64_t divisible_by, int tensor_size);

// What a test option asks for: "rank=3,step=2,point=all-reduce".
struct TestPoint {
  int rank = 0;
  int64_t step = 0;    // test_hang, test_nan, test_overflow: 1 is the first step
  std::string point;   // test_hang: all-reduce, receive, checkpoint
  std::string tensor;  // test_overflow: whose gradient; empty: the rank's first
  int64_t bytes = 0;   // test_write_fault: the write that would pass this many bytes of the rank's checkpoint file
                       // fails; test_offload_fault: likewise of a file under --nvme-path
  std::string file;    // test_offload_fault: optimizer (also when empty) or param
  bool kill = false;   // test_write_fault: end the process there instead of reporting a full disk
};

// Pure. `flag` is test-hang, test-nan, test-overflow, test-write-fault or test-offload-fault; empty text gives nothing.
// Throws Error(kUsage).
std::optional<TestPoint> parse_test_point(const std::string& flag, const std::string& text);

// Pure. What --help prints, and the three tables of flags that --help-flags prints (markdown: for the README).
std::string train_help();
std::string flag_tables(bool markdown);

}  // namespace ashlar
