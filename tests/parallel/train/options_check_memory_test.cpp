// What saves memory: recomputation, sharding, offloading.
#include <gmock/gmock.h>

#include "tests/parallel/train/options_support.h"

namespace ashlar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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
  EXPECT_THAT(
      resolve_refusal({"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers",
                       "2", "--pipeline-model-parallel-size", "2", "--decoder-first-pipeline-num-layers", "1"},
                      2),
      AllOf(HasSubstr("is more than the 1 layer of a stage (--num-layers 8, --pipeline-model-parallel-size 2, "
                      "--decoder-first-pipeline-num-layers 1)"),
            HasSubstr("nearest legal value: 1")));
  EXPECT_THAT(
      resolve_refusal({"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers",
                       "4", "--pipeline-model-parallel-size", "2", "--decoder-last-pipeline-num-layers", "6"},
                      2),
      HasSubstr("--pipeline-model-parallel-size 2, --decoder-last-pipeline-num-layers 6)"));
  EXPECT_THAT(
      resolve_refusal({"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers",
                       "5", "--pipeline-model-parallel-size", "2", "--decoder-last-pipeline-num-layers", "4"},
                      2),
      HasSubstr("--pipeline-model-parallel-size 2);"))
      << "the split is even";
  EXPECT_THAT(with({"--recompute-granularity", "full"}), HasSubstr("needs --recompute-method uniform or block"));
  EXPECT_THAT(with({"--recompute-method", "block"}),
              HasSubstr("--recompute-method block needs --recompute-granularity full; got no --recompute-granularity"));
  EXPECT_THAT(with({"--recompute-num-layers", "2", "--recompute-activations"}),
              HasSubstr("--recompute-num-layers 2 needs --recompute-granularity full; got --recompute-activations; "
                        "nearest legal value: 1"));
  EXPECT_THAT(
      with({"--recompute-modules", "mlp_act", "--recompute-granularity", "full", "--recompute-method", "block"}),
      HasSubstr("needs --recompute-granularity selective; got --recompute-granularity full"));
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

TEST(Check, OffloadNeedsAPlaceAndAUse) {
  EXPECT_THAT(resolve_refusal({"--offload-optimizer-device", "nvme"}), HasSubstr("needs --nvme-path DIR"));
  EXPECT_THAT(resolve_refusal({"--nvme-path", "d"}),
              AllOf(HasSubstr("--nvme-path d"), HasSubstr("nearest legal value: --offload-optimizer-device nvme")));
  EXPECT_THAT(resolve_refusal({"--nvme-path", "d", "--offload-optimizer-device", "cpu"}),
              HasSubstr("nothing goes there"));
  EXPECT_THAT(
      resolve_refusal({"--offload-optimizer-device", "cpu", "--device", "cpu"}),
      AllOf(HasSubstr("in host memory already"), HasSubstr("leave it out, or give --offload-optimizer-device nvme")));
  EXPECT_THAT(
      resolve_refusal({"--optimizer-cpu-offload", "--device", "cpu"}),
      HasSubstr("--optimizer-cpu-offload has no use with --device cpu: the optimizer's state is in host memory"));
  EXPECT_THAT(resolve_refusal({"--optimizer-cpu-offload", "--nvme-path", "d"}),
              HasSubstr("nothing goes there with --optimizer-cpu-offload"));
  EXPECT_THAT(resolve_refusal({"--optimizer-cpu-offload", "--offload-optimizer-device", "nvme", "--nvme-path", "d"}),
              AllOf(HasSubstr("contradict each other"), HasSubstr("give one")));
  EXPECT_THROW(legal_options({"--offload-optimizer-device", "disk"}), Error);
  const auto values = [](std::vector<std::string> further) {
    std::vector<std::string> flags{"--offload-param-device", "nvme"};
    flags.insert(flags.end(), further.begin(), further.end());
    return flags;
  };
  const std::vector<std::string> files{"--offload-optimizer-device", "nvme", "--nvme-path", "d"};
  EXPECT_THAT(resolve_refusal(values(files)), AllOf(HasSubstr("--offload-param-device nvme needs --zero-stage 3"),
                                                    HasSubstr("found --zero-stage 0, the default")));
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

// One wrong setting does not hide the others.
TEST(Check, ContradictionsAreReportedTogether) {
  EXPECT_THAT(resolve_refusal({"--zero-stage", "2", "--data-parallel-sharding-strategy", "optim",
                               "--offload-param-device", "nvme", "--grad-reduce-in-bf16"}),
              AllOf(HasSubstr("they are --zero-stage 2 and 1"), HasSubstr("needs --nvme-path DIR"),
                    HasSubstr("--grad-reduce-in-bf16 needs --bf16")));
}

TEST(Check, NarrowGradients) {
  EXPECT_THAT(resolve_refusal({"--grad-reduce-in-bf16"}), HasSubstr("--grad-reduce-in-bf16 needs --bf16"));
  EXPECT_NO_THROW(legal_options({"--grad-reduce-in-bf16", "--bf16"}));
}

TEST(Check, InstancesOfTheOptimizer) {
  EXPECT_THAT(resolve_refusal({"--num-distributed-optimizer-instances", "2"}),
              AllOf(HasSubstr("needs --zero-stage of at least 1"), HasSubstr("nearest legal value: 1")));
  EXPECT_THAT(
      resolve_refusal({"--num-distributed-optimizer-instances", "2", "--data-parallel-sharding-strategy", "no_shard"}),
      HasSubstr("with --data-parallel-sharding-strategy no_shard nothing is shared out"));
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

}  // namespace
}  // namespace ashlar
