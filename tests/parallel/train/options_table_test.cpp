// The table of flags: Megatron's names, what has no effect or is refused, and the texts made from it.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Every flag of Megatron-LM's GPT pretraining that its users' scripts carry, and the zero-bubble fork's.
constexpr const char* kMegatronFlags =
    "num-layers hidden-size num-attention-heads ffn-hidden-size kv-channels group-query-attention "
    "num-query-groups seq-length max-position-embeddings position-embedding-type rotary-base "
    "rotary-percent use-rope-scaling rope-scaling-factor rotary-interleaved swiglu squared-relu "
    "openai-gelu normalization norm-epsilon apply-layernorm-1p disable-bias-linear add-qkv-bias "
    "untie-embeddings-and-output-weights make-vocab-size-divisible-by hidden-dropout attention-dropout "
    "init-method-std qk-layernorm micro-batch-size global-batch-size rampup-batch-size "
    "step-batch-size-schedule train-iters train-samples exit-interval exit-duration-in-mins "
    "exit-signal-handler lr min-lr lr-decay-style lr-decay-iters lr-decay-samples lr-wsd-decay-style "
    "lr-wsd-decay-iters lr-warmup-iters lr-warmup-samples lr-warmup-fraction lr-warmup-init optimizer "
    "adam-beta1 adam-beta2 adam-eps weight-decay clip-grad fp16 bf16 loss-scale initial-loss-scale "
    "min-loss-scale loss-scale-window hysteresis accumulate-allreduce-grads-in-fp32 grad-reduce-in-bf16 "
    "attention-softmax-in-fp32 fp8-format fp8-recipe tensor-model-parallel-size "
    "pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage "
    "num-virtual-stages-per-pipeline-rank pipeline-model-parallel-layout "
    "decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers "
    "account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split "
    "microbatch-group-size-per-virtual-pipeline-stage sequence-parallel context-parallel-size "
    "cp-comm-type expert-model-parallel-size num-experts moe-router-topk use-distributed-optimizer "
    "use-megatron-fsdp data-parallel-sharding-strategy overlap-grad-reduce overlap-param-gather "
    "ddp-bucket-size ddp-num-buckets tp-comm-overlap no-overlap-p2p-communication recompute-activations "
    "recompute-granularity recompute-method recompute-num-layers recompute-modules use-flash-attn "
    "attention-backend transformer-impl data-path split train-data-path valid-data-path test-data-path "
    "data-args-path per-split-data-args-path data-cache-path mock-data num-workers no-mmap-bin-files "
    "reset-position-ids reset-attention-mask eod-mask-loss dataloader-type tokenizer-type tokenizer-model "
    "vocab-file merge-file vocab-size save load save-interval ckpt-format async-save finetune "
    "no-save-optim no-load-optim no-load-rng ckpt-step dist-ckpt-optim-fully-reshardable "
    "exit-on-missing-checkpoint eval-iters eval-interval log-interval log-throughput log-params-norm "
    "log-num-zeros-in-grad tensorboard-dir tensorboard-log-interval log-timers-to-tensorboard "
    "log-memory-to-tensorboard log-validation-ppl-to-tensorboard timing-log-level timing-log-option "
    "wandb-project wandb-exp-name wandb-save-dir seed distributed-backend distributed-timeout-minutes "
    "use-tp-pp-dp-mapping deterministic-mode no-check-for-nan-in-loss-and-grad profile profile-step-start "
    "profile-step-end profile-ranks log-straggler rerun-mode use-mcore-models "
    "use-rotary-position-embeddings batch-size warmup model-parallel-size checkpoint-activations "
    "enable-zb-runtime enable-zero-bubble zero-bubble-v-schedule zero-bubble-v-schedule-mem-setup "
    "enable-1f1b-v zero-bubble-max-pending-backward zero-bubble-adaptive-memory-limit-percentile "
    "enable-optimizer-post-validation enable-exactly-numeric-match allow-padding-num-layers "
    "zero-bubble-pipeline-timers-start-iter zero-bubble-pipeline-timers-end-iter interleave-group-size "
    "offload-chunk-num offload-time auto-offload-time";

std::vector<std::string> megatron_flags() {
  std::istringstream words(kMegatronFlags);
  return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
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
