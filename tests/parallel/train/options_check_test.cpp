// What is legal together, what follows from the number of ranks, and that a default given is a default left out.
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "parallel/train/flags.h"
#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Check, DeviceAndBackendMustFit) {
  EXPECT_THAT(resolve_refusal({"--device", "cuda", "--distributed-backend", "mpi"}),
              AllOf(HasSubstr("--device cuda and --distributed-backend mpi contradict"), HasSubstr("nccl or staged")));
  for (const char* backend : {"nccl", "staged"}) {
    EXPECT_THAT(
        resolve_refusal({"--device", "cpu", "--distributed-backend", backend}),
        AllOf(HasSubstr("--device cpu and --distributed-backend"), HasSubstr(backend), HasSubstr("contradict")));
    EXPECT_NO_THROW(resolve_options(legal_options({"--device", "cuda", "--distributed-backend", backend}), 1));
    EXPECT_NO_THROW(resolve_options(legal_options({"--distributed-backend", backend}), 1));
  }
  EXPECT_NO_THROW(resolve_options(legal_options({"--device", "cpu", "--distributed-backend", "mpi"}), 1));
}

TEST(Check, MatrixProductsAndPrecisionMustFit) {
  EXPECT_THAT(resolve_refusal({"--gemm", "own"}), HasSubstr("--gemm own needs --bf16 or --fp16"));
  EXPECT_NO_THROW(resolve_options(legal_options({"--gemm", "own", "--bf16"}), 1));
  EXPECT_THAT(resolve_refusal({"--allow-tf32", "--bf16"}), HasSubstr("--allow-tf32 and --bf16 contradict"));
}

TEST(Check, Fp16IsSixteenBitsLikeBf16) {
  EXPECT_NO_THROW(resolve_options(legal_options({"--gemm", "own", "--fp16"}), 1));
  EXPECT_THAT(resolve_refusal({"--allow-tf32", "--fp16"}), HasSubstr("--allow-tf32 and --fp16 contradict"));
  EXPECT_THAT(resolve_refusal({"--bf16", "--fp16"}), HasSubstr("--bf16 and --fp16 contradict"));
}

TEST(Check, LossScalesThatMakeNoSense) {
  for (const std::string flag : {"--loss-scale", "--initial-loss-scale", "--min-loss-scale"}) {
    for (const char* value : {"0", "-2", "1e-30"}) {
      EXPECT_THAT(parse_refusal({"--fp16", flag, value}),
                  AllOf(HasSubstr(flag + " expects"), HasSubstr("nearest legal value: 9.5367431640625e-07")));
    }
    EXPECT_THAT(parse_refusal({"--fp16", flag, "1e30"}), HasSubstr("nearest legal value: 1.8446744073709552e+19"));
    for (const char* value : {"inf", "-inf", "nan", "much"}) {
      EXPECT_THAT(
          parse_refusal({"--fp16", flag, value}),
          AllOf(
              HasSubstr(flag + " expects a number of at least 9.5367431640625e-07 and at most 1.8446744073709552e+19"),
              HasSubstr(value)));
    }
  }
  EXPECT_THAT(parse_refusal({"--fp16", "--loss-scale-window", "0"}),
              AllOf(HasSubstr("--loss-scale-window expects"), HasSubstr("nearest legal value: 1")));
  EXPECT_THAT(parse_refusal({"--fp16", "--hysteresis", "0"}),
              AllOf(HasSubstr("--hysteresis expects"), HasSubstr("nearest legal value: 1")));
  EXPECT_THAT(parse_refusal({"--fp16", "--initial-scale-power", "65"}),
              AllOf(HasSubstr("--initial-scale-power expects"), HasSubstr("nearest legal value: 64")));
}

TEST(Check, LossScaleFlagsMustFitTogether) {
  EXPECT_THAT(resolve_refusal({"--fp16", "--loss-scale", "128", "--hysteresis", "2", "--initial-scale-power", "9"}),
              AllOf(HasSubstr("--loss-scale 128 is a static scale"), HasSubstr("--hysteresis 2"),
                    HasSubstr("--initial-scale-power 9"), HasSubstr("leave out")));
  EXPECT_THAT(resolve_refusal({"--fp16", "--initial-loss-scale", "128", "--min-loss-scale", "256"}),
              AllOf(HasSubstr("--min-loss-scale 256 is above"), HasSubstr("nearest legal --min-loss-scale: 128")));
  EXPECT_THAT(resolve_refusal({"--fp16", "--initial-scale-power", "-3"}),
              AllOf(HasSubstr("--min-loss-scale 1, the default,"), HasSubstr("nearest legal --min-loss-scale: 0.125")));
  EXPECT_THAT(resolve_refusal({"--fp16", "--initial-scale-power", "3", "--initial-loss-scale", "8"}),
              HasSubstr("two names for one setting"));
}

TEST(Check, LossScaleFlagsWithoutFp16) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--loss-scale", "128"},
                                                {"--initial-loss-scale", "65536"},
                                                {"--min-loss-scale", "2"},
                                                {"--loss-scale-window", "500"},
                                                {"--hysteresis", "3"},
                                                {"--initial-scale-power", "16"}}) {
    for (const char* precision : {"--bf16", "--bf16=false"}) {
      EXPECT_THAT(resolve_refusal({precision, flags[0], flags[1]}),
                  AllOf(HasSubstr(flags[0] + " " + flags[1] + " without --fp16"), HasSubstr("leave it out")));
    }
    EXPECT_NO_THROW(resolve_options(legal_options({"--fp16", flags[0], flags[1]}), 1));
  }
  // Megatron's defaults, which scripts carry along, are said to have no use.
  const std::vector<std::string> defaults = {"--loss-scale",
                                             "1",
                                             "--initial-loss-scale",
                                             "4294967296",
                                             "--min-loss-scale",
                                             "1.0",
                                             "--loss-scale-window",
                                             "1000",
                                             "--hysteresis",
                                             "2",
                                             "--bf16"};
  const ParsedCommand parsed = parse_train_options(legal_args(defaults));
  EXPECT_NO_THROW(resolve_options(parsed.options, 1));
  EXPECT_EQ(parsed.notes.size(), 5u);
}

TEST(Resolve, LossScale) {
  const TrainOptions dynamic = resolve_options(legal_options({"--fp16"}), 1);
  EXPECT_EQ(dynamic.initial_loss_scale, 4294967296.0);
  EXPECT_EQ(dynamic.min_loss_scale, 1);
  EXPECT_EQ(dynamic.loss_scale_window, 1000);
  EXPECT_EQ(dynamic.hysteresis, 2);
  EXPECT_EQ(dynamic.loss_scale, 0);
  EXPECT_NO_THROW(resolve_options(dynamic, 1));
  const TrainOptions given =
      resolve_options(legal_options({"--fp16", "--initial-loss-scale", "4294967296", "--min-loss-scale", "1",
                                     "--loss-scale-window", "1000", "--hysteresis", "2"}),
                      1);
  EXPECT_EQ(options_json(given), options_json(dynamic));
  const TrainOptions power = resolve_options(legal_options({"--fp16", "--initial-scale-power", "16"}), 1);
  EXPECT_EQ(power.initial_loss_scale, 65536);
  EXPECT_NO_THROW(resolve_options(power, 1));
  const TrainOptions fixed = resolve_options(legal_options({"--fp16", "--loss-scale", "1000"}), 1);
  EXPECT_EQ(fixed.loss_scale, 1000);
  EXPECT_EQ(fixed.initial_loss_scale, 0);
  EXPECT_NO_THROW(resolve_options(fixed, 1));
}

TEST(TestPoints, Overflow) {
  const auto point = parse_test_point("test-overflow", "rank=1,step=3,tensor=h.2.mlp.c_fc.weight");
  ASSERT_TRUE(point);
  EXPECT_EQ(point->rank, 1);
  EXPECT_EQ(point->step, 3);
  EXPECT_EQ(point->tensor, "h.2.mlp.c_fc.weight");
  EXPECT_EQ(parse_test_point("test-overflow", "rank=1,step=3")->tensor, "");
  EXPECT_THAT(resolve_refusal({"--test-overflow", "rank=1"}), HasSubstr("--test-overflow expects rank=R,step=S"));
  EXPECT_THAT(resolve_refusal({"--test-nan", "rank=0,step=1,tensor=wte.weight"}), HasSubstr("has no place there"));
}

TEST(Check, OffloadNeedsAPlaceAndAUse) {
  EXPECT_THAT(resolve_refusal({"--offload-optimizer-device", "nvme"}), HasSubstr("needs --nvme-path DIR"));
  EXPECT_THAT(resolve_refusal({"--nvme-path", "d"}),
              AllOf(HasSubstr("--nvme-path d"), HasSubstr("nearest legal value: --offload-optimizer-device nvme")));
  EXPECT_THAT(resolve_refusal({"--nvme-path", "d", "--offload-optimizer-device", "cpu"}),
              HasSubstr("nothing goes there"));
  EXPECT_THAT(resolve_refusal({"--offload-optimizer-device", "cpu", "--device", "cpu"}),
              AllOf(HasSubstr("in host memory already"), HasSubstr("nearest legal values: none, or nvme")));
  EXPECT_THAT(resolve_refusal({"--optimizer-cpu-offload", "--device", "cpu"}), HasSubstr("in host memory already"));
  EXPECT_THAT(resolve_refusal({"--optimizer-cpu-offload", "--offload-optimizer-device", "nvme", "--nvme-path", "d"}),
              AllOf(HasSubstr("contradict each other"), HasSubstr("give one")));
  EXPECT_THAT(resolve_refusal({"--test-offload-fault", "rank=0,bytes=1"}),
              HasSubstr("needs --offload-optimizer-device nvme"));
  EXPECT_THAT(resolve_refusal({"--test-offload-fault", "rank=0,bytes=1,file=x"}), HasSubstr("[,file=F]"));
  EXPECT_THROW(legal_options({"--offload-optimizer-device", "disk"}), Error);
  const auto values = [](std::vector<std::string> further) {
    std::vector<std::string> flags{"--offload-param-device", "nvme"};
    flags.insert(flags.end(), further.begin(), further.end());
    return flags;
  };
  const std::vector<std::string> files{"--offload-optimizer-device", "nvme", "--nvme-path", "d"};
  const auto on_gpu = [&](const char* fault) {  // the weights' disk is the only one
    return legal_options(values(
        {"--offload-optimizer-device", "cpu", "--nvme-path", "d", "--zero-stage", "3", "--test-offload-fault", fault}));
  };
  EXPECT_NO_THROW(resolve_options(on_gpu("rank=0,bytes=1,file=param"), 1));
  EXPECT_THROW(resolve_options(on_gpu("rank=0,bytes=1"), 1), Error);
  EXPECT_THAT(resolve_refusal(values(files)),
              AllOf(HasSubstr("--offload-param-device nvme needs --zero-stage 3"), HasSubstr("found 0")));
  EXPECT_THAT(resolve_refusal(values({"--zero-stage", "3"})),
              AllOf(HasSubstr("needs --offload-optimizer-device cpu or nvme beside it"),
                    HasSubstr("--offload-param-device nvme needs --nvme-path DIR")));
  EXPECT_THAT(resolve_refusal({"--offload-param-device", "cpu", "--device", "cpu"}),
              HasSubstr("the weights are in host memory already"));
  EXPECT_NO_THROW(resolve_options(
      legal_options(values({"--offload-optimizer-device", "nvme", "--nvme-path", "d", "--zero-stage", "3"})), 1));
  EXPECT_NO_THROW(resolve_options(legal_options({"--offload-optimizer-device", "nvme", "--nvme-path", "d"}), 1));
  EXPECT_EQ(offload_optimizer_of(legal_options({"--optimizer-cpu-offload"})), "cpu");
  EXPECT_EQ(offload_optimizer_of(legal_options()), "none");
}

TEST(Check, NamesOfZeroStages) {
  EXPECT_THAT(resolve_refusal({"--zero-stage", "0", "--use-distributed-optimizer"}),
              AllOf(HasSubstr("--zero-stage 0 and --use-distributed-optimizer contradict"), HasSubstr("give one")));
  EXPECT_THAT(resolve_refusal({"--use-megatron-fsdp", "--data-parallel-sharding-strategy", "no_shard"}),
              HasSubstr("--data-parallel-sharding-strategy no_shard and --use-megatron-fsdp contradict"));
  EXPECT_THAT(resolve_refusal({"--zero-stage", "2", "--use-distributed-optimizer", "--data-parallel-sharding-strategy",
                               "no_shard"}),
              HasSubstr("they are --zero-stage 2 and 0"));
  EXPECT_THAT(resolve_refusal({"--zero-stage", "2", "--data-parallel-sharding-strategy", "optim_grads_params"}),
              HasSubstr("they are --zero-stage 2 and 3"));
  EXPECT_THAT(resolve_refusal({"--use-megatron-fsdp", "--zero-stage", "0"}),
              HasSubstr("--zero-stage 0 and --use-megatron-fsdp contradict"));
  EXPECT_THROW(legal_options({"--zero-stage", "4"}), Error);
  EXPECT_THROW(legal_options({"--grad-reduce", "epoch"}), Error);
  for (const auto& [stage, strategy, distributed, fsdp] : {std::tuple{1, "optim", true, false},
                                                           {1, "", true, false},
                                                           {0, "no_shard", false, false},
                                                           {1, "no_shard", true, false},
                                                           {1, "optim", false, true},
                                                           {2, "optim_grads", true, true},
                                                           {3, "optim_grads_params", false, false},
                                                           {3, "", true, true},
                                                           {0, "", false, false}}) {
    TrainOptions options;
    options.data_parallel_sharding_strategy = strategy;
    options.use_distributed_optimizer = distributed;
    options.use_megatron_fsdp = fsdp;
    EXPECT_EQ(zero_stage_of(options), stage);
    EXPECT_EQ(reduces_each_microbatch(options), stage >= 2);
    options.zero_stage = stage;
    if (options.data_parallel_sharding_strategy != "no_shard" || !distributed) {
      EXPECT_EQ(zero_stage_of(options), stage);
    } else {  // two names that were given, and they differ
      EXPECT_THROW(zero_stage_of(options), Error);
      continue;
    }
    for (const char* when : {"step", "micro-batch"}) {
      options.grad_reduce = when;
      EXPECT_EQ(reduces_each_microbatch(options), options.grad_reduce == "micro-batch");
    }
  }
}

TEST(Check, WhatIsShardedIsSaidInOneLine) {
  const auto text = [](const std::vector<std::string>& flags, int num_ranks) {
    return sharding_text(resolve_options(legal_options(flags), num_ranks));
  };
  EXPECT_EQ(text({}, 1), "sharding: ZeRO-0 over 1 data rank: nothing; gradients reduced once a step");
  EXPECT_EQ(text({"--use-megatron-fsdp", "--global-batch-size", "64", "--recompute-activations",
                  "--num-distributed-optimizer-instances", "2"},
                 8),
            "sharding: ZeRO-3 over 4 data ranks, in 2 groups: optimizer state, gradients and parameters; gradients "
            "reduced after every micro-batch (4 a step); recompute selective");
  EXPECT_EQ(text({"--zero-stage", "2", "--grad-reduce", "step", "--bf16", "--grad-reduce-in-bf16",
                  "--offload-optimizer-device", "nvme", "--nvme-path", "d"},
                 2),
            "sharding: ZeRO-2 over 2 data ranks: optimizer state and gradients; gradients reduced once a step in bf16, "
            "whole until then; optimizer state in files");
  EXPECT_EQ(text({"--zero-stage", "3", "--offload-optimizer-device", "nvme", "--offload-param-device", "nvme",
                  "--nvme-path", "d"},
                 2),
            "sharding: ZeRO-3 over 2 data ranks: optimizer state, gradients and parameters; gradients reduced after "
            "every micro-batch (1 a step); optimizer state in files; parameters in files");
}

TEST(Check, NarrowGradients) {
  EXPECT_THAT(resolve_refusal({"--grad-reduce-in-bf16"}), HasSubstr("--grad-reduce-in-bf16 needs --bf16"));
  EXPECT_NO_THROW(legal_options({"--grad-reduce-in-bf16", "--bf16"}));
}

TEST(Check, InstancesOfTheOptimizer) {
  EXPECT_THAT(resolve_refusal({"--num-distributed-optimizer-instances", "2"}),
              AllOf(HasSubstr("needs --zero-stage of at least 1"), HasSubstr("nearest legal value: 1")));
  const TrainOptions options = legal_options({"--zero-stage", "2", "--num-distributed-optimizer-instances", "4"});
  EXPECT_NO_THROW(resolve_options(options, 8));
  try {
    resolve_options(options, 6);
    FAIL() << "4 does not divide 6";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("--num-distributed-optimizer-instances 4 does not divide the data size 6"),
                      HasSubstr("nearest legal value: 3")));
  }
}

// Case: a value equal to a layer's default is not passed on. Every done flag, both kinds of default: a value, or words
// that stand for a derived value.
TEST(Defaults, GivenExplicitlyAreTheSameAsLeftOut) {
  const std::vector<std::string> data = {"--data-path", "corpus"};
  std::vector<std::string> plain = legal_args();
  std::erase(plain, "--mock-data");
  plain.insert(plain.end(), data.begin(), data.end());
  const TrainOptions base = resolve_options(parse_train_options(plain).options, 4);
  const std::map<std::string, std::string> derived = {{"ffn-hidden-size", "192"},
                                                      {"kv-channels", "4"},
                                                      {"max-position-embeddings", "16"},
                                                      {"vocab-size", "257"},
                                                      {"global-batch-size", "8"},
                                                      {"lr-decay-iters", "20"},
                                                      {"lr-decay-samples", "160"},
                                                      {"lr-warmup-fraction", "0"},
                                                      {"decoder-first-pipeline-num-layers", "8"},
                                                      {"decoder-last-pipeline-num-layers", "8"}};
  int compared = 0;
  for (const Flag& flag : done_flags()) {
    std::string value = flag.is_switch() ? "false" : shown_value(flag, TrainOptions{});
    if (const auto found = derived.find(flag.name); found != derived.end()) {
      value = found->second;
    }
    if (value.empty() || std::holds_alternative<std::monostate>(flag.target)) {
      continue;  // no default, such as --save
    }
    std::vector<std::string> args = plain;
    args.push_back("--" + flag.name + "=" + value);
    TrainOptions given = resolve_options(parse_train_options(args).options, 4);
    // The two uneven-split options keep what was said; what matters is the split.
    EXPECT_EQ(split_layers(8, 1, given.decoder_first_pipeline_num_layers, given.decoder_last_pipeline_num_layers),
              split_layers(8, 1));
    given.decoder_first_pipeline_num_layers.reset();
    given.decoder_last_pipeline_num_layers.reset();
    EXPECT_EQ(options_json(given), options_json(base)) << flag.name << " " << value;
    ++compared;
  }
  EXPECT_GE(compared, 45);
}

// Every done flag reaches the options: another value than the default changes what is dumped.
TEST(Defaults, EveryFlagChangesTheSettings) {
  const nlohmann::json base = options_json(TrainOptions{});
  for (const Flag& flag : done_flags()) {
    if (std::holds_alternative<std::monostate>(flag.target) || flag.name == "openai-gelu") {
      continue;
    }
    TrainOptions options;
    std::string value = "0.5";
    if (flag.is_switch()) {
      value = "true";
    } else if (flag.choices.size() > 1) {
      value = flag.choices[1] == shown_value(flag, options) ? flag.choices[0] : flag.choices[1];
    } else if (flag.value == "N") {
      value = flag.range && flag.range->max < 77 ? "7" : "77";
    } else if (flag.value == "TIME") {
      value = "77s";
    }
    apply_flag(flag, {value}, "--" + flag.name, options);
    const nlohmann::json changed = options_json(options);
    EXPECT_NE(changed[flag.name], base[flag.name]) << flag.name;
    nlohmann::json others = changed;
    others[flag.name] = base[flag.name];
    EXPECT_EQ(others, base) << flag.name << " changed something else too";
  }
}

TEST(Resolve, FillsWhatFollowsFromTheWorld) {
  const TrainOptions o =
      resolve_options(legal_options({"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2",
                                     "--global-batch-size", "24", "--lr-warmup-fraction", "0.1"}),
                      12);
  EXPECT_EQ(o.data_parallel_size, 3);
  EXPECT_EQ(o.num_microbatches, 4);
  EXPECT_EQ(o.ffn_hidden_size, 192);
  EXPECT_EQ(o.kv_channels, 4);
  EXPECT_EQ(o.max_position_embeddings, 16);
  EXPECT_EQ(o.vocab_size, 257);
  EXPECT_EQ(o.lr_decay_iters, 20);
  EXPECT_EQ(o.lr_warmup_iters, 2);
  EXPECT_EQ(o.world_size, 12);
  EXPECT_EQ(resolve_options(legal_options(), 4).global_batch_size, 8);
  EXPECT_EQ(options_json(resolve_options(o, 12)), options_json(o)) << "resolving twice changes nothing";
}

TEST(Resolve, SamplesBecomeSteps) {
  std::vector<std::string> args = legal_args();
  args.erase(std::ranges::find(args, "--train-iters"), std::ranges::find(args, "--lr"));
  const std::vector<std::string> more = {"--train-samples",     "85", "--lr-decay-samples", "60",
                                         "--lr-warmup-samples", "16"};
  args.insert(args.end(), more.begin(), more.end());
  const TrainOptions o = resolve_options(parse_train_options(args).options, 4);
  EXPECT_EQ(o.train_iters, 10);
  EXPECT_EQ(o.lr_decay_iters, 7);
  EXPECT_EQ(o.lr_warmup_iters, 2);
  EXPECT_THAT(refusal([&] { resolve_options(parse_train_options(args).options, 64); }),
              AllOf(HasSubstr("--train-samples 85"), HasSubstr("nearest legal value: 128")));
}

TEST(Resolve, WorldSizeMustBeTheGrid) {
  const std::vector<std::string> grid = {"--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"};
  const std::string six = resolve_refusal(grid, 6);
  EXPECT_THAT(six, AllOf(HasSubstr("the world has 6 ranks"),
                         HasSubstr("--tensor-model-parallel-size 2 x --pipeline-model-parallel-size 2 = 4"),
                         HasSubstr("mpirun -np 4 or mpirun -np 8")));
  EXPECT_THAT(resolve_refusal(grid, 1), AllOf(HasSubstr("the world has 1 rank,"), HasSubstr("mpirun -np 4")));
  std::vector<std::string> dry = grid;
  dry.insert(dry.end(), {"--dry-run", "--world-size", "6"});
  EXPECT_THAT(resolve_refusal(dry, 1), HasSubstr("--world-size 4 or --world-size 8"));
  // Sizes whose product passes 2^31.
  TrainOptions large = legal_options();
  large.num_layers = large.num_attention_heads = large.hidden_size = 100000;
  large.tensor_model_parallel_size = large.pipeline_model_parallel_size = 100000;
  EXPECT_THAT(refusal([&] { resolve_options(large, 8); }), HasSubstr("= 10000000000"));
}

TEST(Resolve, DryRunNeedsNeitherRanksNorData) {
  const ParsedCommand parsed = parse_train_options(
      {"--dry-run", "--world-size", "8", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"});
  EXPECT_EQ(resolve_options(parsed.options, 1).data_parallel_size, 2);
  EXPECT_THAT(resolve_refusal({"--world-size", "8"}), AllOf(HasSubstr("--dry-run"), HasSubstr("mpirun -np 8")));
}

TEST(Resolve, BatchesMustDivide) {
  EXPECT_THAT(resolve_refusal({"--global-batch-size", "30"}, 4),
              AllOf(HasSubstr("--global-batch-size 30"), HasSubstr("--micro-batch-size 2 x data size 4 = 8"),
                    HasSubstr("24 or 32")));
  EXPECT_THAT(resolve_refusal({"--global-batch-size", "3"}, 4), HasSubstr("nearest legal --global-batch-size: 8"));
}

TEST(Model, SizesMustDivide) {
  EXPECT_THAT(resolve_refusal({"--tensor-model-parallel-size", "5"}, 5),
              AllOf(HasSubstr("--num-attention-heads 12"), HasSubstr("--tensor-model-parallel-size 5"),
                    HasSubstr("1, 2, 3, 4, 6, 12"), HasSubstr("10 or 15"), HasSubstr("--ffn-hidden-size 192")));
  EXPECT_THAT(resolve_refusal({"--ffn-hidden-size", "50", "--tensor-model-parallel-size", "4"}, 4),
              AllOf(HasSubstr("--ffn-hidden-size 50"), HasSubstr("48 or 52")));
  TrainOptions o = legal_options();
  o.hidden_size = 50;
  EXPECT_THAT(refusal([&] { validate_options(o); }),
              AllOf(HasSubstr("--hidden-size 50"), HasSubstr("--num-attention-heads 12"), HasSubstr("48 or 60")));
  o.hidden_size = 12 * 257;
  EXPECT_THAT(refusal([&] { validate_options(o); }),
              AllOf(HasSubstr("257 values per head, attention takes at most 256"), HasSubstr("at least 13 heads")));
  o.hidden_size = 12 * 256;
  EXPECT_NO_THROW(validate_options(o));
  EXPECT_THAT(resolve_refusal({"--kv-channels", "8"}), AllOf(HasSubstr("--kv-channels 8"), HasSubstr("= 4")));
  EXPECT_THAT(resolve_refusal({"--max-position-embeddings", "8"}),
              AllOf(HasSubstr("--seq-length 16"), HasSubstr("--max-position-embeddings 8")));
  EXPECT_THAT(resolve_refusal({"--vocab-size", "256"}), HasSubstr("nearest legal value: 257"));
  EXPECT_THAT(resolve_refusal({"--tokenizer-type", "NullTokenizer"}), HasSubstr("--vocab-size"));
}

// Any vocabulary is legal on any tensor size: it is padded.
TEST(Model, VocabularyIsPadded) {
  EXPECT_EQ(padded_vocab_size(65, 1, 2), 66);
  EXPECT_EQ(padded_vocab_size(67, 1, 4), 68);
  EXPECT_EQ(padded_vocab_size(65, 128, 2), 256);
  EXPECT_EQ(padded_vocab_size(256, 128, 2), 256);
  EXPECT_EQ(padded_vocab_size(50257, 128, 1), 50304);
  for (const char* vocab : {"65", "67"}) {
    for (const char* t : {"2", "4"}) {
      EXPECT_NO_THROW(resolve_options(legal_options({"--tokenizer-type", "NullTokenizer", "--vocab-size", vocab,
                                                     "--tensor-model-parallel-size", t}),
                                      4));
    }
  }
}

// Case: integer division loses the remainder.
TEST(Layers, NoneIsDropped) {
  EXPECT_THAT(split_layers(6, 4), ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(split_layers(5, 2), ElementsAre(3, 2));
  EXPECT_THAT(split_layers(10, 3), ElementsAre(4, 3, 3));
  EXPECT_THAT(split_layers(30, 4, 6, 6), ElementsAre(6, 9, 9, 6));
  EXPECT_THAT(split_layers(10, 3, 2), ElementsAre(2, 4, 4));
  EXPECT_THAT(split_layers(10, 3, {}, 1), ElementsAre(5, 4, 1));
  EXPECT_THAT(split_layers(10, 2, 7, 3), ElementsAre(7, 3));
  for (int64_t layers = 1; layers <= 40; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      const auto split = split_layers(layers, stages);
      ASSERT_EQ(split.size(), stages);
      EXPECT_EQ(std::accumulate(split.begin(), split.end(), int64_t{0}), layers);
      EXPECT_LE(split.front() - split.back(), 1);
      EXPECT_GE(split.back(), 1);
    }
  }
}

TEST(Layers, EmptyStagesAreRefused) {
  EXPECT_THAT(refusal([] { split_layers(3, 4); }),
              AllOf(HasSubstr("--pipeline-model-parallel-size 4"), HasSubstr("--num-layers 3"), HasSubstr(": 3")));
  EXPECT_THAT(refusal([] { split_layers(8, 4, 4, 3); }),
              AllOf(HasSubstr("--decoder-first-pipeline-num-layers 4"), HasSubstr("at least 2 must be left")));
  EXPECT_THAT(refusal([] { split_layers(8, 2, 4, 3); }), HasSubstr("must add up to --num-layers"));
  EXPECT_THAT(refusal([] { split_layers(8, 1, 4); }), HasSubstr("--pipeline-model-parallel-size of at least 2"));
  EXPECT_THAT(resolve_refusal({"--pipeline-model-parallel-size", "9"}, 9),
              HasSubstr("more stages than --num-layers 8"));
}

// Case: interleaving does not exist yet, so it is refused by its own name before anything starts.
TEST(Layers, InterleavingIsRefusedByName) {
  EXPECT_THAT(parse_refusal({"--num-layers-per-virtual-pipeline-stage", "2"}),
              AllOf(HasSubstr("--num-layers-per-virtual-pipeline-stage 2"), HasSubstr("--pipeline-schedule")));
  EXPECT_THAT(parse_refusal({"--num-virtual-stages-per-pipeline-rank", "2"}), HasSubstr("not supported yet"));
  EXPECT_NO_THROW(legal_options({"--num-virtual-stages-per-pipeline-rank", "1"}));
}

TEST(Train, RequiredFlagsAreNamedTogether) {
  EXPECT_THAT(refusal([] { validate_options(TrainOptions{}); }),
              AllOf(HasSubstr("--num-layers is required"), HasSubstr("--hidden-size is required"),
                    HasSubstr("--num-attention-heads is required"), HasSubstr("--seq-length is required"),
                    HasSubstr("--micro-batch-size is required"), HasSubstr("--train-iters"),
                    HasSubstr("--lr is required"), HasSubstr("no data")));
  EXPECT_NO_THROW(validate_options(parse_train_options({"--load-hf", "dir", "--micro-batch-size", "1", "--train-iters",
                                                        "1", "--lr", "1", "--mock-data"})
                                       .options));
}

TEST(Train, LengthAndRate) {
  EXPECT_THAT(resolve_refusal({"--train-samples", "100"}),
              AllOf(HasSubstr("--train-iters 20"), HasSubstr("--train-samples 100")));
  EXPECT_THAT(resolve_refusal({"--min-lr", "0.01"}), AllOf(HasSubstr("--min-lr 0.01"), HasSubstr("--lr 0.001")));
  EXPECT_THAT(resolve_refusal({"--lr-warmup-iters", "20"}), HasSubstr("nearest legal --lr-warmup-iters: 19"));
  EXPECT_THAT(resolve_refusal({"--lr-warmup-iters", "2", "--lr-warmup-fraction", "0.1"}), HasSubstr("more than once"));
  EXPECT_THAT(resolve_refusal({"--lr-decay-iters", "5", "--lr-decay-samples", "9"}), HasSubstr("give one of them"));
  EXPECT_NO_THROW(resolve_options(legal_options({"--lr-decay-style", "constant", "--lr-warmup-iters", "20"}), 1));
}

TEST(Data, SourcesAndSplits) {
  EXPECT_THAT(resolve_refusal({"--data-path", "x"}), HasSubstr("the data is given more than once"));
  EXPECT_THAT(resolve_refusal({"--valid-data-path", "x"}), HasSubstr("--train-data-path"));
  EXPECT_EQ(legal_options({"--split", "949, 50, 1"}).split, "949,50,1");
  for (const char* split : {"1", "90,10", "0.9,0.1,0", "100,0,0"}) {
    EXPECT_NO_THROW(validate_options(legal_options({"--split", split}))) << split;
  }
  for (const char* split : {"0,1,1", "a,b", "1,2,3,4", "1,,2", "-1,2,3", "1,2,", ","}) {
    EXPECT_THAT(resolve_refusal({std::string("--split=") + split}), HasSubstr("969,30,1")) << split;
  }
  TrainOptions o = legal_options({"--split", "1,0,0", "--eval-interval", "5"});
  EXPECT_NO_THROW(validate_options(o));
  o.mock_data = false;
  o.data_path = {"corpus"};
  EXPECT_THAT(refusal([&] { validate_options(o); }), HasSubstr("--split 1,0,0 sets none aside"));
  o.data_path.clear();
  o.train_data_path = {"corpus"};
  EXPECT_THAT(refusal([&] { validate_options(o); }), HasSubstr("--valid-data-path"));
}

TEST(Files, Contradictions) {
  EXPECT_THAT(resolve_refusal({"--save-interval", "5"}), HasSubstr("needs --save DIR"));
  EXPECT_THAT(resolve_refusal({"--load", "a", "--load-hf", "b"}), HasSubstr("both bring weights"));
  EXPECT_NO_THROW(validate_options(legal_options({"--load", "a", "--save", "a", "--load-hf", "b"})));
}

TEST(Values, AreCheckedWithoutAParserToo) {
  TrainOptions o = legal_options();
  o.clip_grad = -1;
  o.optimizer = "lion";
  o.adam_beta1 = 1;
  EXPECT_THAT(refusal([&] { validate_options(o); }),
              AllOf(HasSubstr("--clip-grad"), HasSubstr("--optimizer"), HasSubstr("--adam-beta1")));
}

TEST(TestPoints, AreReadAndChecked) {
  const auto hang = parse_test_point("test-hang", "rank=3,step=2,point=all-reduce");
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->rank, 3);
  EXPECT_EQ(hang->step, 2);
  EXPECT_EQ(hang->point, "all-reduce");
  const auto fault = parse_test_point("test-write-fault", "rank=1,bytes=4096,kill=1");
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->bytes, 4096);
  EXPECT_TRUE(fault->kill);
  const auto offload = parse_test_point("test-offload-fault", "rank=1,bytes=4096");
  EXPECT_EQ(offload->rank, 1);
  EXPECT_EQ(offload->bytes, 4096);
  EXPECT_EQ(offload->file, "");
  EXPECT_EQ(parse_test_point("test-offload-fault", "rank=1,bytes=1,file=param")->file, "param");
  EXPECT_EQ(parse_test_point("test-offload-fault", "rank=1,bytes=1,file=optimizer")->file, "optimizer");
  EXPECT_THAT(refusal([] { parse_test_point("test-offload-fault", "rank=1,bytes=1,file=x"); }), HasSubstr("no place"));
  EXPECT_THAT(refusal([] { parse_test_point("test-write-fault", "rank=1,bytes=1,file=param"); }),
              HasSubstr("no place"));
  EXPECT_THAT(refusal([] { parse_test_point("test-offload-fault", "rank=1,bytes=1,kill=1"); }), HasSubstr("no place"));
  EXPECT_FALSE(parse_test_point("test-nan", ""));
  for (const char* wrong : {"rank=3", "rank=3,step=x,point=receive", "rank=3,step=2,point=lunch",
                            "rank=1,rank=2,step=2", "rank=-1,step=2,point=receive", "rank=3,step=2,point=receive,"}) {
    EXPECT_THAT(refusal([&] { parse_test_point("test-hang", wrong); }), HasSubstr("--test-hang expects")) << wrong;
  }
  EXPECT_THAT(resolve_refusal({"--test-nan", "rank=1"}), HasSubstr("--test-nan expects rank=R,step=S"));
}

}  // namespace
}  // namespace ashlar
