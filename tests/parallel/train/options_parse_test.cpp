// From words to options: names, values, repeats, the TOML file, and the texts made from the table of flags.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class TomlFile {
 public:
  explicit TomlFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / fmt::format("ashlar_options_{}.toml", getpid())) {
    std::ofstream(path_) << text;
  }
  ~TomlFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Every flag of Megatron-LM's GPT pretraining that its users' scripts carry, and the zero-bubble fork's.
const std::vector<std::string>& megatron_flags() {
  static const std::vector<std::string> names = {"num-layers",
                                                 "hidden-size",
                                                 "num-attention-heads",
                                                 "ffn-hidden-size",
                                                 "kv-channels",
                                                 "group-query-attention",
                                                 "num-query-groups",
                                                 "seq-length",
                                                 "max-position-embeddings",
                                                 "position-embedding-type",
                                                 "rotary-base",
                                                 "rotary-percent",
                                                 "use-rope-scaling",
                                                 "rope-scaling-factor",
                                                 "rotary-interleaved",
                                                 "swiglu",
                                                 "squared-relu",
                                                 "openai-gelu",
                                                 "normalization",
                                                 "norm-epsilon",
                                                 "apply-layernorm-1p",
                                                 "disable-bias-linear",
                                                 "add-qkv-bias",
                                                 "untie-embeddings-and-output-weights",
                                                 "make-vocab-size-divisible-by",
                                                 "hidden-dropout",
                                                 "attention-dropout",
                                                 "init-method-std",
                                                 "qk-layernorm",
                                                 "micro-batch-size",
                                                 "global-batch-size",
                                                 "rampup-batch-size",
                                                 "step-batch-size-schedule",
                                                 "train-iters",
                                                 "train-samples",
                                                 "exit-interval",
                                                 "exit-duration-in-mins",
                                                 "exit-signal-handler",
                                                 "lr",
                                                 "min-lr",
                                                 "lr-decay-style",
                                                 "lr-decay-iters",
                                                 "lr-decay-samples",
                                                 "lr-wsd-decay-style",
                                                 "lr-wsd-decay-iters",
                                                 "lr-warmup-iters",
                                                 "lr-warmup-samples",
                                                 "lr-warmup-fraction",
                                                 "lr-warmup-init",
                                                 "optimizer",
                                                 "adam-beta1",
                                                 "adam-beta2",
                                                 "adam-eps",
                                                 "weight-decay",
                                                 "clip-grad",
                                                 "fp16",
                                                 "bf16",
                                                 "loss-scale",
                                                 "initial-loss-scale",
                                                 "min-loss-scale",
                                                 "loss-scale-window",
                                                 "hysteresis",
                                                 "accumulate-allreduce-grads-in-fp32",
                                                 "grad-reduce-in-bf16",
                                                 "attention-softmax-in-fp32",
                                                 "fp8-format",
                                                 "fp8-recipe",
                                                 "tensor-model-parallel-size",
                                                 "pipeline-model-parallel-size",
                                                 "num-layers-per-virtual-pipeline-stage",
                                                 "num-virtual-stages-per-pipeline-rank",
                                                 "pipeline-model-parallel-layout",
                                                 "decoder-first-pipeline-num-layers",
                                                 "decoder-last-pipeline-num-layers",
                                                 "account-for-embedding-in-pipeline-split",
                                                 "account-for-loss-in-pipeline-split",
                                                 "microbatch-group-size-per-virtual-pipeline-stage",
                                                 "sequence-parallel",
                                                 "context-parallel-size",
                                                 "cp-comm-type",
                                                 "expert-model-parallel-size",
                                                 "num-experts",
                                                 "moe-router-topk",
                                                 "use-distributed-optimizer",
                                                 "use-megatron-fsdp",
                                                 "data-parallel-sharding-strategy",
                                                 "overlap-grad-reduce",
                                                 "overlap-param-gather",
                                                 "ddp-bucket-size",
                                                 "ddp-num-buckets",
                                                 "tp-comm-overlap",
                                                 "no-overlap-p2p-communication",
                                                 "recompute-activations",
                                                 "recompute-granularity",
                                                 "recompute-method",
                                                 "recompute-num-layers",
                                                 "recompute-modules",
                                                 "use-flash-attn",
                                                 "attention-backend",
                                                 "transformer-impl",
                                                 "data-path",
                                                 "split",
                                                 "train-data-path",
                                                 "valid-data-path",
                                                 "test-data-path",
                                                 "data-args-path",
                                                 "per-split-data-args-path",
                                                 "data-cache-path",
                                                 "mock-data",
                                                 "num-workers",
                                                 "no-mmap-bin-files",
                                                 "reset-position-ids",
                                                 "reset-attention-mask",
                                                 "eod-mask-loss",
                                                 "dataloader-type",
                                                 "tokenizer-type",
                                                 "tokenizer-model",
                                                 "vocab-file",
                                                 "merge-file",
                                                 "vocab-size",
                                                 "save",
                                                 "load",
                                                 "save-interval",
                                                 "ckpt-format",
                                                 "async-save",
                                                 "finetune",
                                                 "no-save-optim",
                                                 "no-load-optim",
                                                 "no-load-rng",
                                                 "ckpt-step",
                                                 "dist-ckpt-optim-fully-reshardable",
                                                 "exit-on-missing-checkpoint",
                                                 "eval-iters",
                                                 "eval-interval",
                                                 "log-interval",
                                                 "log-throughput",
                                                 "log-params-norm",
                                                 "log-num-zeros-in-grad",
                                                 "tensorboard-dir",
                                                 "tensorboard-log-interval",
                                                 "log-timers-to-tensorboard",
                                                 "log-memory-to-tensorboard",
                                                 "log-validation-ppl-to-tensorboard",
                                                 "timing-log-level",
                                                 "timing-log-option",
                                                 "wandb-project",
                                                 "wandb-exp-name",
                                                 "wandb-save-dir",
                                                 "seed",
                                                 "distributed-backend",
                                                 "distributed-timeout-minutes",
                                                 "use-tp-pp-dp-mapping",
                                                 "deterministic-mode",
                                                 "no-check-for-nan-in-loss-and-grad",
                                                 "profile",
                                                 "profile-step-start",
                                                 "profile-step-end",
                                                 "profile-ranks",
                                                 "log-straggler",
                                                 "rerun-mode",
                                                 "use-mcore-models",
                                                 "use-rotary-position-embeddings",
                                                 "batch-size",
                                                 "warmup",
                                                 "model-parallel-size",
                                                 "checkpoint-activations",
                                                 "enable-zb-runtime",
                                                 "enable-zero-bubble",
                                                 "zero-bubble-v-schedule",
                                                 "zero-bubble-v-schedule-mem-setup",
                                                 "enable-1f1b-v",
                                                 "zero-bubble-max-pending-backward",
                                                 "zero-bubble-adaptive-memory-limit-percentile",
                                                 "enable-optimizer-post-validation",
                                                 "enable-exactly-numeric-match",
                                                 "allow-padding-num-layers",
                                                 "zero-bubble-pipeline-timers-start-iter",
                                                 "zero-bubble-pipeline-timers-end-iter",
                                                 "interleave-group-size",
                                                 "offload-chunk-num",
                                                 "offload-time",
                                                 "auto-offload-time"};
  return names;
}

TEST(FlagTable, HoldsEveryMegatronFlagOnce) {
  const std::vector<std::string> names = flag_names();
  for (const std::string& name : megatron_flags()) {
    EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  }
  for (const std::string& name : names) {
    EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  }
}

TEST(FlagTable, EveryRowSaysSomething) {
  for (const Flag& flag : all_flags()) {
    EXPECT_FALSE(flag.text.empty()) << flag.name;
    EXPECT_EQ(flag.text.find('\n'), std::string::npos) << flag.name;
    EXPECT_EQ(flag.range.has_value() && flag.is_switch(), false) << flag.name;
  }
}

// A word that is legal for the flag by its kind.
std::vector<std::string> some_value(const Flag& flag) {
  return flag.is_switch() ? std::vector<std::string>{} : std::vector<std::string>{"7"};
}

std::vector<std::string> words(const Flag& flag, const std::vector<std::string>& values) {
  std::vector<std::string> out = {"--" + flag.name};
  out.insert(out.end(), values.begin(), values.end());
  return out;
}

TEST(FlagTable, NoEffectFlagsAreAcceptedAndNamedInOneLine) {
  std::vector<std::string> all;
  for (const Flag& flag : all_flags()) {
    if (flag.status != FlagStatus::kNoEffect) {
      continue;
    }
    const auto args = words(flag, some_value(flag));
    all.insert(all.end(), args.begin(), args.end());
    const ParsedCommand parsed = parse_train_options(legal_args(args));
    ASSERT_EQ(parsed.notes.size(), 1) << flag.name;
    EXPECT_THAT(parsed.notes[0], AllOf(HasSubstr("accepted without effect"), HasSubstr("--" + flag.name)));
    EXPECT_EQ(options_json(parsed.options), options_json(legal_options())) << flag.name;
  }
  EXPECT_EQ(parse_train_options(legal_args(all)).notes.size(), 1);
}

TEST(FlagTable, RefusedFlagsSayTheirNameAndWhatToDo) {
  for (const Flag& flag : all_flags()) {
    if (flag.status == FlagStatus::kReplaced) {
      EXPECT_THAT(parse_refusal(words(flag, some_value(flag))),
                  AllOf(HasSubstr("--" + flag.name + " no longer exists"), HasSubstr(flag.text)));
    }
    if (flag.status != FlagStatus::kRefused) {
      continue;
    }
    EXPECT_THAT(parse_refusal(words(flag, some_value(flag))),
                AllOf(HasSubstr("--" + flag.name), HasSubstr("not supported yet"), HasSubstr(flag.text)));
    for (const std::string& value : flag.neutral) {
      EXPECT_EQ(options_json(legal_options({"--" + flag.name, value})), options_json(legal_options())) << flag.name;
    }
  }
}

TEST(FlagTable, DeadFlagsNameTheirSuccessor) {
  EXPECT_THAT(parse_refusal({"--batch-size", "4"}), HasSubstr("--micro-batch-size"));
  EXPECT_THAT(parse_refusal({"--warmup", "0.1"}), HasSubstr("--lr-warmup-fraction"));
  EXPECT_THAT(parse_refusal({"--model-parallel-size", "2"}), HasSubstr("--tensor-model-parallel-size"));
  EXPECT_THAT(parse_refusal({"--checkpoint-activations"}), HasSubstr("--recompute-granularity"));
}

TEST(Dropout, IsAtLeast0AndBelow1) {
  EXPECT_EQ(legal_options().hidden_dropout, 0);
  EXPECT_EQ(legal_options().attention_dropout, 0);
  EXPECT_EQ(legal_options({"--hidden-dropout", "0.1"}).hidden_dropout, 0.1);
  EXPECT_EQ(legal_options({"--attention-dropout", "0.999"}).attention_dropout, 0.999);
  for (const char* flag : {"--hidden-dropout", "--attention-dropout"}) {
    EXPECT_THAT(parse_refusal({flag, "-0.1"}),
                AllOf(HasSubstr(flag), HasSubstr("at least 0 and below 1"), HasSubstr("nearest legal value: 0")));
    EXPECT_THAT(parse_refusal({flag, "1"}), AllOf(HasSubstr(flag), HasSubstr("at least 0 and below 1, got '1'"),
                                                  HasSubstr("nearest legal values: those just below 1")));
  }
}

TEST(Recompute, NeedsWhatBelongsTogether) {
  const auto with = [](const std::vector<std::string>& more) { return resolve_refusal(more); };
  EXPECT_NO_THROW(resolve_options(legal_options({"--recompute-granularity", "full", "--recompute-method", "uniform",
                                                 "--recompute-num-layers", "8"}),
                                  1));
  EXPECT_NO_THROW(resolve_options(
      legal_options({"--recompute-granularity", "selective", "--recompute-modules", "core_attn", "mlp_act"}), 1));
  EXPECT_THAT(with({"--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "9"}),
              AllOf(HasSubstr("--recompute-num-layers 9 is more than the 8 layers of a stage"),
                    HasSubstr("nearest legal value: 8")));
  EXPECT_THAT(resolve_refusal({"--recompute-granularity", "full", "--recompute-method", "uniform",
                               "--recompute-num-layers", "5", "--pipeline-model-parallel-size", "2"},
                              2),
              AllOf(HasSubstr("--recompute-num-layers 5 is more than the 4 layers of a stage"),
                    HasSubstr("--pipeline-model-parallel-size 2"), HasSubstr("nearest legal value: 4")));
  EXPECT_THAT(with({"--recompute-granularity", "full"}), HasSubstr("needs --recompute-method uniform or block"));
  EXPECT_THAT(with({"--recompute-method", "block"}), HasSubstr("need --recompute-granularity full"));
  EXPECT_THAT(with({"--recompute-modules", "mlp_act"}), HasSubstr("needs --recompute-granularity selective"));
  EXPECT_THAT(with({"--recompute-granularity", "selective", "--recompute-modules", "mlp_atc"}),
              AllOf(HasSubstr("core_attn, layernorm, mlp_act"), HasSubstr("did you mean mlp_act?")));
  EXPECT_THAT(parse_refusal({"--recompute-granularity", "fulll"}), HasSubstr("did you mean full?"));
}

TEST(Recompute, ActivationsIsMegatronsOtherNameOfSelective) {
  const TrainOptions options =
      resolve_options(legal_options({"--recompute-activations", "--recompute-modules", "mlp_act"}), 1);
  EXPECT_EQ(options.recompute_granularity, "selective");
  EXPECT_THAT(options.recompute_modules, testing::ElementsAre("mlp_act"));
  EXPECT_NO_THROW(resolve_options(options, 1));  // resolved options stay legal
  EXPECT_THAT(
      resolve_refusal({"--recompute-activations", "--recompute-granularity", "full", "--recompute-method", "uniform"}),
      AllOf(HasSubstr("--recompute-activations"), HasSubstr("contradict each other")));
  EXPECT_EQ(resolve_options(legal_options(), 1).recompute_granularity, "");
}

TEST(SequenceParallel, NeedsALengthThatTheTensorSizeDivides) {
  const auto resolved = [](int64_t length, bool splits, int tensor_size) {
    TrainOptions options = legal_options();
    options.seq_length = length;
    options.sequence_parallel = splits;
    options.tensor_model_parallel_size = tensor_size;
    return resolve_options(options, tensor_size);
  };
  EXPECT_TRUE(legal_options({"--sequence-parallel"}).sequence_parallel);
  EXPECT_FALSE(legal_options().sequence_parallel);
  EXPECT_NO_THROW(resolved(16, true, 4));
  EXPECT_THAT(refusal([&] { resolved(18, true, 4); }),
              AllOf(HasSubstr("--sequence-parallel"), HasSubstr("--seq-length 18"),
                    HasSubstr("--tensor-model-parallel-size 4"), HasSubstr("nearest legal --seq-length: 16 or 20")));
  EXPECT_NO_THROW(resolved(18, false, 4));
  EXPECT_NO_THROW(resolved(17, true, 1));
}

TEST(SequenceParallel, HasNoEffectOnOneTensorRankAndSaysSo) {
  const auto notes = [](const std::vector<std::string>& more) {
    return fmt::format("{}", fmt::join(parse_train_options(legal_args(more)).notes, "\n"));
  };
  EXPECT_THAT(notes({"--sequence-parallel"}),
              HasSubstr("--sequence-parallel has no use here: --tensor-model-parallel-size is 1"));
  EXPECT_EQ(notes({"--sequence-parallel", "--tensor-model-parallel-size", "2"}), "");
}

TEST(FlagTable, NeutralNumbersAreComparedAsNumbers) {
  for (const char* one : {"1", "1.0", "1e0", "10e-1"}) {
    EXPECT_NO_THROW(legal_options({"--rotary-percent", one}));
  }
  EXPECT_THAT(parse_refusal({"--rotary-percent", "0.5"}),
              AllOf(HasSubstr("--rotary-percent 0.5 is not supported yet"), HasSubstr("only 1 is accepted")));
  EXPECT_THAT(parse_refusal({"--distributed-backend", "gloo"}),
              AllOf(HasSubstr("not supported yet"), HasSubstr("nccl, staged, mpi")));
  EXPECT_NO_THROW(legal_options({"--fp16=false"}));
}

TEST(FlagTable, TwoPrecisionsContradict) {
  EXPECT_THAT(resolve_refusal({"--bf16", "--fp16"}), HasSubstr("--bf16 and --fp16 contradict"));
  EXPECT_TRUE(legal_options({"--fp16"}).fp16);
  EXPECT_TRUE(legal_options({"--bf16", "--fp16=false"}).bf16);
  EXPECT_FALSE(legal_options().bf16);
}

TEST(Parse, BothWaysOfGivingAValue) {
  const TrainOptions o = legal_options({"--clip-grad=0.25", "--eod-mask-loss", "--weight-decay", "1e-1"});
  EXPECT_EQ(o.clip_grad, 0.25);
  EXPECT_EQ(o.weight_decay, 0.1);
  EXPECT_TRUE(o.eod_mask_loss);
  EXPECT_FALSE(legal_options({"--eod-mask-loss=false"}).eod_mask_loss);
}

TEST(Parse, ListsTakeWordsUpToTheNextFlag) {
  const TrainOptions o = legal_options({"--train-data-path", "a", "b", "c", "--seed", "5"});
  EXPECT_THAT(o.train_data_path, testing::ElementsAre("a", "b", "c"));
  EXPECT_EQ(o.seed, 5);
}

TEST(Parse, UnknownFlagsGetASuggestion) {
  EXPECT_THAT(parse_refusal({"--num-layer", "4"}), HasSubstr("unknown flag --num-layer; did you mean --num-layers?"));
  EXPECT_THAT(parse_refusal({"--num_layers", "4"}), HasSubstr("did you mean --num-layers?"));
  EXPECT_THAT(parse_refusal({"--hidden_size=4"}), HasSubstr("unknown flag --hidden_size; did you mean --hidden-size?"));
  EXPECT_THAT(parse_refusal({"--clipgrad", "1"}), HasSubstr("did you mean --clip-grad?"));
  EXPECT_THAT(parse_refusal({"--tensor-model-paralel-size", "2"}), HasSubstr("--tensor-model-parallel-size?"));
  EXPECT_THAT(parse_refusal({"--num-att", "2"}), HasSubstr("did you mean --num-attention-heads?"));  // abbreviation
  EXPECT_THAT(parse_refusal({"--zzzzzzzz"}), AllOf(HasSubstr("unknown flag --zzzzzzzz"), Not(HasSubstr("mean"))));
  EXPECT_THAT(parse_refusal({"-x"}), HasSubstr("unknown flag -x"));
  EXPECT_THAT(parse_refusal({"--seed", "4", "5"}), HasSubstr("'5' belongs to no flag"));
}

TEST(Parse, ValuesOfTheWrongKind) {
  EXPECT_THAT(parse_refusal({"--seed", "x"}), HasSubstr("--seed expects a whole number of at least 0, got 'x'"));
  EXPECT_THAT(parse_refusal({"--seed", "1.5"}), HasSubstr("whole number"));
  EXPECT_THAT(parse_refusal({"--seed", "99999999999999999999"}), HasSubstr("--seed"));
  EXPECT_THAT(parse_refusal({"--tensor-model-parallel-size", "3000000000"}), HasSubstr("at most 2147483647"));
  for (const char* flag : {"--ddp-bucket-size", "--eval-interval", "--seed"}) {
    EXPECT_THAT(parse_refusal({flag, "9223372036854775807"}), AllOf(HasSubstr(flag), HasSubstr("at most 1099511627776"),
                                                                    HasSubstr("nearest legal value: 1099511627776")));
  }
  EXPECT_THAT(parse_refusal({"--memory-limit-gb", "1e18"}), HasSubstr("nearest legal value: 1000000"));
  EXPECT_THAT(parse_refusal({"--clip-grad", "nan"}), HasSubstr("--clip-grad expects a number"));
  EXPECT_THAT(parse_refusal({"--clip-grad", "inf"}), HasSubstr("--clip-grad expects a number"));
  EXPECT_THAT(parse_refusal({"--clip-grad", "1,5"}), HasSubstr("got '1,5'"));
  EXPECT_THAT(parse_refusal({"--clip-grad", "-1"}), AllOf(HasSubstr("got '-1'"), HasSubstr("nearest legal value: 0")));
  EXPECT_THAT(parse_refusal({"--adam-beta1", "1"}),
              HasSubstr("--adam-beta1 expects a number of at least 0 and below 1"));
  EXPECT_THAT(parse_refusal({"--adam-beta2", "-0.1"}), HasSubstr("nearest legal value: 0"));
  EXPECT_THAT(parse_refusal({"--ffn-hidden-size", "0"}), HasSubstr("nearest legal value: 1"));
  EXPECT_THAT(parse_refusal({"--seed"}), HasSubstr("--seed needs a value (N)"));
  EXPECT_THAT(parse_refusal({"--seed", "--mock-data"}),
              HasSubstr("--seed needs a value (N), but --mock-data follows it"));
  EXPECT_THAT(parse_refusal({"--data-path"}), HasSubstr("--data-path needs a value"));
  EXPECT_THAT(parse_refusal({"--save="}), HasSubstr("--save"));
  EXPECT_THAT(parse_refusal({"--eod-mask-loss=maybe"}), HasSubstr("--eod-mask-loss is a switch"));
  EXPECT_THAT(parse_refusal({"--optimizer", "adma"}),
              HasSubstr("--optimizer expects one of adam, sgd; got 'adma'; did you mean adam?"));
  EXPECT_THAT(parse_refusal({"--device", "gpu"}),
              AllOf(HasSubstr("--device expects one of cuda, cpu, auto; got 'gpu'"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(parse_refusal({"--optimizer", "muon"}), HasSubstr("--optimizer muon is not supported yet"));
  EXPECT_THAT(parse_refusal({"--lr-decay-style", "WSD"}), HasSubstr("not supported yet; this version has linear"));
  EXPECT_THAT(parse_refusal({"--pipeline-schedule", "interleaved"}), HasSubstr("1f1b, gpipe"));
  EXPECT_THAT(parse_refusal({"--tokenizer-type", "GPT2BPETokenizer"}), HasSubstr("not supported yet"));
}

TEST(Parse, RepeatsMustAgree) {
  EXPECT_EQ(legal_options({"--seed", "4", "--seed", "4"}).seed, 4);
  EXPECT_THAT(parse_refusal({"--seed", "4", "--seed", "5"}), HasSubstr("--seed is given with different values: 4, 5"));
  EXPECT_THAT(parse_refusal({"--data-path", "a", "--data-path", "b"}), HasSubstr("--data-path is given 2 times"));
  EXPECT_TRUE(legal_options({"--eod-mask-loss", "--eod-mask-loss"}).eod_mask_loss);
  EXPECT_THAT(parse_refusal({"--openai-gelu", "--activation", "gelu-erf"}), HasSubstr("--openai-gelu asks for"));
}

TEST(Parse, Timeout) {
  EXPECT_EQ(legal_options({"--distributed-timeout-minutes", "2"}).distributed_timeout_seconds, 120);
  EXPECT_EQ(legal_options({"--distributed-timeout-minutes", "2m"}).distributed_timeout_seconds, 120);
  EXPECT_EQ(legal_options({"--distributed-timeout-minutes", "30s"}).distributed_timeout_seconds, 30);
  EXPECT_EQ(legal_options({"--distributed-timeout-minutes", "0.5"}).distributed_timeout_seconds, 30);
  for (const char* wrong : {"0", "-1", "s", "m", "10h", "ten"}) {
    EXPECT_THAT(parse_refusal({"--distributed-timeout-minutes", wrong}), HasSubstr(fmt::format("got '{}'", wrong)));
  }
}

TEST(Parse, Activation) {
  EXPECT_FALSE(legal_options().gelu_erf);
  EXPECT_TRUE(legal_options({"--activation", "gelu-erf"}).gelu_erf);
  EXPECT_FALSE(legal_options({"--openai-gelu"}).gelu_erf);
  EXPECT_FALSE(legal_options({"--no-check-for-nan-in-loss-and-grad"}).check_for_nan_in_loss_and_grad);
}

TEST(Parse, GivenNamesAndUnusedSettings) {
  const ParsedCommand parsed =
      parse_train_options(legal_args({"--optimizer", "sgd", "--adam-beta1", "0.5", "--eval-iters", "3"}));
  EXPECT_THAT(parsed.given, Contains("adam-beta1"));
  EXPECT_THAT(parsed.given, Not(Contains("adam-beta2")));
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("--adam-beta1 has no use here: the optimizer is sgd")));
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("--eval-iters has no use here")));
  EXPECT_TRUE(parse_train_options(legal_args()).notes.empty());
}

TEST(ConfigFile, SameNamesAndTheCommandLineWins) {
  const TomlFile file(
      "# a comment\nclip-grad = 0.5\nseed = 9   # another\nsplit = \"8,1,1\"\neod-mask-loss = true\n"
      "data-order = \"sequential\"\ntrain-data-path = [\"a\", \"b\"]\nuse-flash-attn = true\n");
  const ParsedCommand parsed = parse_train_options(legal_args({"--config", file.path(), "--seed", "4"}));
  EXPECT_EQ(parsed.options.clip_grad, 0.5);
  EXPECT_EQ(parsed.options.seed, 4);
  EXPECT_EQ(parsed.options.split, "8,1,1");
  EXPECT_TRUE(parsed.options.eod_mask_loss);
  EXPECT_EQ(parsed.options.data_order, "sequential");
  EXPECT_THAT(parsed.options.train_data_path, testing::ElementsAre("a", "b"));
  EXPECT_THAT(parsed.notes, Contains(HasSubstr("--use-flash-attn")));
  EXPECT_THAT(parsed.given, testing::IsSupersetOf({"clip-grad", "seed", "split"}));
}

std::string file_refusal(const std::string& text) {
  const TomlFile file(text);
  const std::string message = parse_refusal({"--config", file.path()});
  EXPECT_THAT(message, HasSubstr(file.path()));
  return message;
}

TEST(ConfigFile, MistakesNameFileAndKey) {
  EXPECT_THAT(file_refusal("num-layer = 3\n"), HasSubstr("unknown key num-layer in"));
  EXPECT_THAT(file_refusal("num_layers = 3\n"), HasSubstr("did you mean num-layers?"));
  EXPECT_THAT(file_refusal("[zero_optimization]\nstage = 3\n"), HasSubstr("zero_optimization: use --zero-stage N"));
  EXPECT_THAT(file_refusal("zero_optimization.stage = 3\n"), HasSubstr("use --zero-stage N"));
  EXPECT_THAT(file_refusal("gradient_clipping = 1\n"), HasSubstr("use --clip-grad"));
  EXPECT_THAT(file_refusal("seed = abc\n"), HasSubstr("seed in"));
  EXPECT_THAT(file_refusal("clip-grad = -1\n"), HasSubstr("nearest legal value: 0"));
  EXPECT_THAT(file_refusal("swiglu = true\n"), HasSubstr("not supported yet"));
  EXPECT_THAT(file_refusal("batch-size = 3\n"), HasSubstr("--micro-batch-size"));
  EXPECT_THAT(file_refusal("seed = 3\nlog-interval = 1\nseed = 4\n"), HasSubstr("seed stands there twice"));
  EXPECT_THAT(file_refusal("seed = 3\nseed = 4\n"), HasSubstr("seed"));
  EXPECT_THAT(file_refusal("[model]\nseed = 3\n"), HasSubstr("sections"));
  EXPECT_THAT(file_refusal("config = \"other.toml\"\n"), HasSubstr("for the command line only"));
  EXPECT_THAT(file_refusal("openai-gelu = true\nactivation = \"gelu-erf\"\n"), HasSubstr("--openai-gelu"));
  EXPECT_THAT(parse_refusal({"--config", "/nowhere/run.toml"}), HasSubstr("/nowhere/run.toml: cannot read"));
}

// What is dumped can be given back: the settings of a checkpoint start the same run.
TEST(ConfigFile, TakesTheDumpedSettings) {
  const TrainOptions options =
      legal_options({"--clip-grad", "0.3", "--lr", "0.001", "--activation", "gelu-erf", "--distributed-timeout-minutes",
                     "45s", "--save", "dir", "--decoder-first-pipeline-num-layers", "3", "--adam-eps", "1e-9"});
  const nlohmann::json dumped = options_json(options);
  std::string text;
  for (const auto& [key, value] : dumped.items()) {
    if (!value.is_null()) {
      text += key + " = " + value.dump() + "\n";
    }
  }
  const TomlFile file(text);
  EXPECT_EQ(options_json(parse_train_options({"--config", file.path()}).options), options_json(options));
}

TEST(Json, HoldsEverySettingWithItsType) {
  const nlohmann::json json = options_json(legal_options());
  EXPECT_EQ(json["num-layers"], 8);
  EXPECT_EQ(json["lr"], 0.001);
  EXPECT_EQ(json["mock-data"], true);
  EXPECT_EQ(json["optimizer"], "adam");
  EXPECT_EQ(json["ffn-hidden-size"], nullptr);
  EXPECT_EQ(json["lr-warmup-fraction"], nullptr);
  EXPECT_EQ(json["distributed-timeout-minutes"], "10");
  EXPECT_TRUE(json["data-path"].is_null());
  for (const Flag& flag : all_flags()) {
    const bool shown = flag.status == FlagStatus::kDone && flag.name != "openai-gelu" && flag.name != "config" &&
                       flag.name != "help" && flag.name != "help-flags";
    EXPECT_EQ(json.contains(flag.name), shown) << flag.name;
  }
}

TEST(Help, ListsEveryDoneFlagWithItsDefault) {
  const ParsedCommand parsed = parse_train_options({"--help"});
  ASSERT_TRUE(parsed.print);
  for (const Flag& flag : done_flags()) {
    EXPECT_THAT(*parsed.print, HasSubstr("  --" + flag.name)) << flag.name;
  }
  EXPECT_THAT(*parsed.print, AllOf(HasSubstr("mpirun -np 8"), HasSubstr("[0.9]"), HasSubstr("[required]"),
                                   HasSubstr("\nTest options\n"), HasSubstr("--help-flags")));
  EXPECT_EQ(parse_train_options({"-h"}).print, parsed.print);
}

TEST(Help, TablesHoldEveryFlag) {
  for (const char* form : {"--help-flags", "--help-flags=markdown"}) {
    const ParsedCommand parsed = parse_train_options({form});
    ASSERT_TRUE(parsed.print);
    for (const Flag& flag : all_flags()) {
      EXPECT_THAT(*parsed.print, HasSubstr("--" + flag.name)) << form;
    }
  }
  EXPECT_THAT(refusal([] { parse_train_options({"--help-flags=html"}); }), HasSubstr("=markdown"));
}

// The README's table is this table.
TEST(Help, ReadmeHoldsTheTables) {
  std::ifstream file(ASHLAR_SOURCE_DIR "/README.md");
  ASSERT_TRUE(file) << "no README.md";
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  const std::string begin = "<!-- flags -->\n", end = "<!-- /flags -->";
  const size_t first = readme.find(begin), last = readme.find(end);
  ASSERT_TRUE(first != std::string::npos && last != std::string::npos) << "no <!-- flags --> ... <!-- /flags -->";
  EXPECT_EQ(readme.substr(first + begin.size(), last - first - begin.size()), flag_tables(true))
      << "run scripts/update_readme_flags.sh";
}

}  // namespace
}  // namespace ashlar
