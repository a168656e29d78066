// Megatron's flags that change nothing here, that are refused, and that Megatron itself has replaced.
#include "parallel/train/flags.h"

namespace ashlar {
namespace {

Flag other(FlagStatus status, const char* name, const char* value, const char* text,
           std::vector<std::string> neutral = {}) {
  return Flag{.name = name, .value = value, .text = text, .status = status, .neutral = std::move(neutral)};
}

void no_effect(std::vector<Flag>& flags) {
  const auto add = [&](const char* name, const char* value, const char* why) {
    flags.push_back(other(FlagStatus::kNoEffect, name, value, why));
  };
  add("use-flash-attn", "", "attention is always blocked and never stores T x T");
  add("attention-backend", "NAME", "there is one attention, exact and blocked");
  add("attention-softmax-in-fp32", "", "the softmax is always fp32");
  add("transformer-impl", "NAME", "there is one implementation");
  add("use-mcore-models", "", "there is one implementation");
  add("no-masked-softmax-fusion", "", "there is one softmax kernel");
  add("no-bias-gelu-fusion", "", "changes speed only");
  add("no-bias-dropout-fusion", "", "changes speed only");
  add("no-gradient-accumulation-fusion", "", "changes speed only");
  add("add-qkv-bias", "", "the attention products always have a bias");
  add("accumulate-allreduce-grads-in-fp32", "", "gradients are fp32; --grad-reduce-in-bf16 beside it is refused");
  add("init-model-with-meta-device", "", "starting values are made where they are kept");
  add("calculate-per-token-loss", "", "the loss is always the mean over all counted tokens");
  add("ddp-average-in-collective", "", "gradients are always divided by the number of counted tokens; rounding only");
  add("fsdp-double-buffer", "", "--zero-stage 3 always has a place for two layers");
  add("overlap-cpu-optimizer-d2h-h2d", "", "offloaded state always comes and goes while other chunks are updated");
  add("cross-entropy-loss-fusion", "", "the loss is always one kernel");
  add("cross-entropy-fusion-impl", "NAME", "the loss is always one kernel");
  add("empty-unused-memory-level", "N", "memory is laid out once, nothing is cached");
  add("manual-gc", "", "there is no garbage collector");
  add("manual-gc-interval", "N", "there is no garbage collector");
  add("no-manual-gc-eval", "", "there is no garbage collector");
  add("use-dist-ckpt", "", "checkpoints always load on any grid");
  add("tp-comm-overlap", "", "changes speed only");
  add("no-overlap-p2p-communication", "", "changes speed only");
  add("deterministic-mode", "", "runs on one grid always repeat bit for bit");
  add("num-workers", "N", "token files are memory-mapped, no reader processes");
  add("no-mmap-bin-files", "", "token files are always memory-mapped");
  add("data-cache-path", "DIR", "the order of samples is computed, nothing is cached");
  add("ckpt-format", "NAME", "checkpoints have one format: safetensors and a manifest");
  add("async-save", "", "a save always ends before the next step begins");
  add("dist-ckpt-optim-fully-reshardable", "", "checkpoints always load on any grid");
  add("exit-signal-handler", "", "TERM, INT and USR1 always save and end the run");
  add("log-throughput", "", "the metrics file always has tokens_per_s and model_tflops");
  add("rerun-mode", "NAME", "the check for NaN is always on unless switched off, and no step is run twice");
}

void refused_model(std::vector<Flag>& flags) {
  const auto add = [&](const char* name, const char* value, const char* instead,
                       std::vector<std::string> neutral = {}) {
    flags.push_back(other(FlagStatus::kRefused, name, value, instead, std::move(neutral)));
  };
  add("position-embedding-type", "NAME", "positions are learned", {"learned_absolute"});
  add("use-rotary-position-embeddings", "", "positions are learned; leave it out");
  add("rotary-base", "N", "positions are learned; leave it out", {"10000"});
  add("rotary-percent", "X", "positions are learned; leave it out", {"1"});
  add("rotary-interleaved", "", "positions are learned; leave it out");
  add("use-rope-scaling", "", "positions are learned; leave it out");
  add("rope-scaling-factor", "X", "positions are learned; leave it out", {"8"});
  add("normalization", "NAME", "the norm is LayerNorm", {"LayerNorm"});
  add("apply-layernorm-1p", "", "gamma is stored as it is; leave it out");
  add("qk-layernorm", "", "queries and keys are not normalised; leave it out");
  add("swiglu", "", "use --activation gelu-tanh or gelu-erf");
  add("squared-relu", "", "use --activation gelu-tanh or gelu-erf");
  add("disable-bias-linear", "", "all products have a bias; leave it out");
  add("group-query-attention", "", "every query head has its own keys and values; leave it out");
  add("num-query-groups", "N", "every query head has its own keys and values; leave it out", {"1"});
  add("num-experts", "N", "there are no experts; leave it out");
  add("expert-model-parallel-size", "N", "there are no experts; leave it out", {"1"});
  add("moe-router-topk", "N", "there are no experts; leave it out", {"2"});
}

void refused_numbers_and_grid(std::vector<Flag>& flags) {
  const auto add = [&](const char* name, const char* value, const char* instead,
                       std::vector<std::string> neutral = {}) {
    flags.push_back(other(FlagStatus::kRefused, name, value, instead, std::move(neutral)));
  };
  add("fp8-format", "NAME", "training is in fp32, --bf16 or --fp16; leave it out");
  add("fp8-recipe", "NAME", "training is in fp32, --bf16 or --fp16; leave it out", {"delayed"});
  add("context-parallel-size", "N", "a sequence stays on one tensor group", {"1"});
  add("cp-comm-type", "NAME", "a sequence stays on one tensor group; leave it out", {"p2p"});
  add("offload-param-device", "NAME",
      "weights stay in device memory, --zero-stage 3 shards them; moments and master weights go elsewhere with "
      "--offload-optimizer-device",
      {"none"});
  add("use-torch-fsdp2", "", "use --zero-stage 3");
  add("outer-dp-sharding-strategy", "NAME",
      "groups hold the same: use --num-distributed-optimizer-instances with --zero-stage 1, 2 or 3", {"no_shard"});
  for (const char* name : {"main-grads-dtype", "megatron-fsdp-main-grads-dtype"}) {
    add(name, "NAME", "gradients are fp32, or bf16 with --grad-reduce-in-bf16; leave it out", {"fp32"});
  }
  for (const char* name :
       {"main-params-dtype", "megatron-fsdp-main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"}) {
    add(name, "NAME", "master weights and moments are fp32; use --zero-stage 1 or --offload-optimizer-device",
        {"fp32"});
  }
  add("use-precision-aware-optimizer", "",
      "master weights and moments are fp32; use --zero-stage 1 or --offload-optimizer-device");
  add("optimizer-offload-fraction", "X", "all of the optimizer's state is offloaded or none; leave it out", {"1"});
  add("overlap-param-gather-with-optimizer-step", "",
      "use --overlap-param-gather, which begins with a layer as soon as it is updated");
  add("distribute-saved-activations", "", "use --sequence-parallel, which splits activations among tensor ranks");
  add("cpu-offloading-num-layers", "N", "activations are not offloaded; use --recompute-granularity", {"0"});
  add("fine-grained-activation-offloading", "", "activations are not offloaded; use --recompute-granularity");
  add("offload-modules", "NAME ...", "activations are not offloaded; use --recompute-granularity");
  add("ddp-num-buckets", "N", "use --ddp-bucket-size, in elements");
  add("num-layers-per-virtual-pipeline-stage", "N", "a rank holds one stage: --pipeline-schedule 1f1b or gpipe");
  add("num-virtual-stages-per-pipeline-rank", "N", "a rank holds one stage: --pipeline-schedule 1f1b or gpipe", {"1"});
  add("microbatch-group-size-per-virtual-pipeline-stage", "N", "a rank holds one stage; leave it out");
  add("pipeline-model-parallel-layout", "TEXT",
      "use --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers");
  add("account-for-embedding-in-pipeline-split", "", "use --decoder-first-pipeline-num-layers");
  add("account-for-loss-in-pipeline-split", "", "use --decoder-last-pipeline-num-layers");
  for (const char* name : {"enable-zb-runtime", "enable-zero-bubble", "zero-bubble-v-schedule", "enable-1f1b-v",
                           "enable-optimizer-post-validation", "enable-exactly-numeric-match",
                           "allow-padding-num-layers", "auto-offload-time"}) {
    add(name, "", "there is no zero-bubble schedule; use --pipeline-schedule 1f1b or gpipe");
  }
  for (const char* name :
       {"zero-bubble-v-schedule-mem-setup", "zero-bubble-max-pending-backward",
        "zero-bubble-adaptive-memory-limit-percentile", "zero-bubble-pipeline-timers-start-iter",
        "zero-bubble-pipeline-timers-end-iter", "interleave-group-size", "offload-chunk-num", "offload-time"}) {
    add(name, "X", "there is no zero-bubble schedule; use --pipeline-schedule 1f1b or gpipe");
  }
}

void refused_run(std::vector<Flag>& flags) {
  const auto add = [&](const char* name, const char* value, const char* instead,
                       std::vector<std::string> neutral = {}) {
    flags.push_back(other(FlagStatus::kRefused, name, value, instead, std::move(neutral)));
  };
  add("rampup-batch-size", "S I N ...", "the batch has one size: --global-batch-size");
  add("step-batch-size-schedule", "TEXT", "the batch has one size: --global-batch-size");
  add("exit-duration-in-mins", "N", "use --exit-interval, or send USR1 to mpirun: the run saves and ends");
  add("lr-wsd-decay-style", "NAME", "use --lr-decay-style linear, cosine or constant", {"exponential"});
  add("lr-wsd-decay-iters", "N", "use --lr-decay-style linear, cosine or constant");
  add("test-data-path", "PATH ...", "no test set is evaluated; use --valid-data-path");
  add("data-args-path", "FILE", "give the prefix itself with --data-path");
  add("per-split-data-args-path", "FILE", "use --train-data-path and --valid-data-path");
  add("reset-position-ids", "", "positions count through documents; leave it out");
  add("reset-attention-mask", "", "attention sees across documents; leave it out");
  add("dataloader-type", "NAME", "samples are read in one order: --data-order shuffle or sequential", {"single"});
  add("tokenizer-model", "FILE", "make token files with that tokenizer and use --tokenizer-type NullTokenizer");
  add("vocab-file", "FILE", "make token files with that tokenizer and use --tokenizer-type NullTokenizer");
  add("merge-file", "FILE", "make token files with that tokenizer and use --tokenizer-type NullTokenizer");
  add("finetune", "", "use --load-hf to start from weights alone");
  add("no-save-optim", "", "checkpoints are whole; use --save-hf for the weights alone");
  add("no-load-optim", "", "use --load-hf to start from weights alone");
  add("no-load-rng", "", "random numbers depend on --seed and the step alone; leave it out");
  add("ckpt-step", "N", "--load takes the newest; move newer iter_ folders out of the directory");
  add("log-params-norm", "", "use --metrics-file, which has the gradient norm");
  add("log-num-zeros-in-grad", "", "use --metrics-file, which has the gradient norm");
  add("log-straggler", "", "use --metrics-file, which has the time of every step");
  add("tensorboard-dir", "DIR", "use --metrics-file, one JSON object per step");
  add("tensorboard-log-interval", "N", "use --metrics-file, one JSON object per step", {"1"});
  add("log-timers-to-tensorboard", "", "use --metrics-file, one JSON object per step");
  add("log-memory-to-tensorboard", "", "use --metrics-file, one JSON object per step");
  add("log-validation-ppl-to-tensorboard", "", "use --metrics-file, one JSON object per step");
  add("timing-log-level", "N", "use --metrics-file, which has the time of every step", {"0"});
  add("timing-log-option", "NAME", "use --metrics-file, which has the time of every step", {"minmax"});
  add("wandb-project", "NAME", "use --metrics-file, one JSON object per step");
  add("wandb-exp-name", "NAME", "use --metrics-file, one JSON object per step");
  add("wandb-save-dir", "DIR", "use --metrics-file, one JSON object per step");
  add("profile", "", "run bench_train, which says where the time goes");
  add("profile-step-start", "N", "run bench_train, which says where the time goes", {"10"});
  add("profile-step-end", "N", "run bench_train, which says where the time goes", {"12"});
  add("profile-ranks", "RANK ...", "run bench_train, which says where the time goes");
}

}  // namespace

std::vector<Flag> other_flags() {
  std::vector<Flag> flags;
  no_effect(flags);
  refused_model(flags);
  refused_numbers_and_grid(flags);
  refused_run(flags);
  flags.push_back(other(FlagStatus::kReplaced, "batch-size", "N", "use --micro-batch-size"));
  flags.push_back(other(FlagStatus::kReplaced, "warmup", "X", "use --lr-warmup-fraction or --lr-warmup-iters"));
  flags.push_back(other(FlagStatus::kReplaced, "model-parallel-size", "N", "use --tensor-model-parallel-size"));
  flags.push_back(other(FlagStatus::kReplaced, "use-custom-fsdp", "", "use --use-megatron-fsdp, or --zero-stage 3"));
  flags.push_back(other(FlagStatus::kReplaced, "checkpoint-activations", "",
                        "use --recompute-granularity full --recompute-method uniform"));
  return flags;
}

}  // namespace ashlar
