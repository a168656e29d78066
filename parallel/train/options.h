// The settings of a training run, under the names of Megatron's flags where Megatron has one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ashlar {

struct TrainOptions {
  // model
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t ffn_hidden_size = 0;  // 0: 4 * hidden_size
  int64_t seq_length = 0;
  int64_t max_position_embeddings = 0;  // 0: seq_length
  int64_t vocab_size = 0;               // 0: from the tokenizer
  int64_t make_vocab_size_divisible_by = 128;
  bool untie_embeddings_and_output_weights = false;
  bool gelu_erf = false;  // --activation gelu-erf; default is the tanh form
  double norm_epsilon = 1e-5;
  double init_method_std = 0.02;

  // grid
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  bool use_tp_pp_dp_mapping = false;
  std::optional<int64_t> decoder_first_pipeline_num_layers;
  std::optional<int64_t> decoder_last_pipeline_num_layers;
  std::string pipeline_schedule = "1f1b";
  int64_t ddp_bucket_size = 40000000;  // elements

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
  int64_t lr_warmup_iters = 0;
  double lr_warmup_fraction = -1;  // of lr_decay_iters; -1: not given
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
  std::string save_hf, load_hf;
  double distributed_timeout_seconds = 600;

  // actions other than training
  bool dry_run = false;
  int world_size = 0;         // with dry_run: plan for this many ranks
  int64_t verify_layout = 0;  // steps
};

}  // namespace ashlar
