// The programs as a newcomer meets them: help, plans, configuration files, exported models, sampled text.
#include <filesystem>
#include <fstream>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

namespace fs = std::filesystem;

class Programs : public SystemTest {
 protected:
  Ended sample(const std::string& flags) { return run_command(program(SAMPLE_GPT, Flags(flags).words())); }
};

TEST_F(Programs, Help) {
  const Ended help = pretrain(1, Flags("--help"));
  expect_success(help);
  EXPECT_THAT(help.out,
              AllOf(HasSubstr("mpirun -np 8 pretrain_gpt"), HasSubstr("--clip-grad X"), HasSubstr("[required]")));
  EXPECT_EQ(help.err, "");
  const Ended flags = pretrain(2, Flags("--help-flags"));
  expect_success(flags);
  EXPECT_EQ(count(flags.out, "Accepted without effect"), 1);
  EXPECT_THAT(flags.out,
              AllOf(HasSubstr("Done"), HasSubstr("Refused: not supported yet"), HasSubstr("--use-flash-attn")));
}

TEST_F(Programs, DryRunNeedsNeitherRanksNorData) {
  const Ended ended = pretrain(1, tiny().without("mock-data").with(kGrid221).with("--dry-run --world-size 8"));
  expect_success(ended);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("tensor 2 x pipeline 2 x data 2"), HasSubstr("layers 0..1"),
                               HasSubstr("layers 2..3, head"), HasSubstr("8 samples = 2 micro-batches of 2")));
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(ended.out, testing::ContainsRegex("(^|\n) *(rank )?" + std::to_string(rank) + " "));
  }
  EXPECT_TRUE(snapshot().empty());
  expect_error(pretrain(1, tiny().without("mock-data").with(kGrid221).with("--dry-run --world-size 6")),
               ErrorCode::kUsage, {"the world has 6 ranks", "--world-size 4 or --world-size 8"});
  const Ended started = pretrain(4, tiny().with(kGrid221).with("--dry-run"));
  expect_success(started);
  EXPECT_EQ(count(started.out, "tensor 2 x pipeline 2 x data 1"), 1) << started.out;
}

// 7B parameters would take 110 GB: the plan of it is arithmetic alone.
TEST_F(Programs, DryRunOfAModelThatFitsNowhere) {
  const Flags large(
      "--dry-run --world-size 1024 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-layers 32 "
      "--hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --micro-batch-size 8 --global-batch-size 4096 "
      "--tokenizer-type NullTokenizer --vocab-size 50256 --untie-embeddings-and-output-weights --device cuda");
  const Ended ended = pretrain(1, large.with("--bf16 --train-tokens 2e12 --peak-tflops 312 --mfu 0.45"));
  expect_success(ended);
  EXPECT_THAT(
      ended.out,
      AllOf(HasSubstr("tensor 8 x pipeline 4 x data 32 = 1024 ranks; rank = tensor + 8 x data + 256 x pipeline"),
            HasSubstr("model: 6864257024 parameters (6.864 B)"), HasSubstr("bubble 15.8 %"),
            HasSubstr("optimizer state"), HasSubstr("kernels' workspace"), HasSubstr("data (32)  "),
            HasSubstr("6 x parameters x tokens = 8.24e+22 FLOPs: 6.63 days")));
  expect_error(pretrain(1, large.with("--pipeline-schedule gpipe --memory-limit-gb 10")), ErrorCode::kUsage,
               {"--memory-limit-gb 10: a rank of stage 3 needs 209.91 GB", "largest item: activations",
                "cheapest change that fits: --pipeline-schedule 1f1b --sequence-parallel --recompute-granularity "
                "selective --micro-batch-size 4"});
  const Ended offloaded = pretrain(1, large.with("--bf16 --offload-optimizer-device nvme --nvme-path DIR"));
  expect_success(offloaded);
  EXPECT_THAT(offloaded.out, AllOf(HasSubstr("in host memory"), HasSubstr("on disk")));
}

TEST_F(Programs, ConfigFile) {
  std::ofstream(path("run.toml")) << "num-layers = 4\nhidden-size = 32\nnum-attention-heads = 4\nseq-length = 16\n"
                                     "micro-batch-size = 2\nglobal-batch-size = 8\ntrain-iters = 6\nlr = 0.01\n"
                                     "log-interval = 1\nmock-data = true\n";
  expect_success(pretrain(1, tiny().with("--metrics-file flags.jsonl")));
  expect_success(pretrain(1, Flags("--config run.toml --metrics-file file.jsonl")));
  EXPECT_EQ(steps_of("file.jsonl"), steps_of("flags.jsonl"));
  expect_success(pretrain(1, tiny().with("--train-iters 3 --lr-decay-iters 6 --metrics-file shorter.jsonl")));
  expect_success(pretrain(1, Flags("--config run.toml --train-iters 3 --lr-decay-iters 6 --metrics-file wins.jsonl")));
  EXPECT_EQ(steps_of("wins.jsonl"), steps_of("shorter.jsonl")) << "the command line wins";
  std::ofstream(path("bad.toml")) << "num_layers = 4\n";
  expect_error(pretrain(2, Flags("--config bad.toml")), ErrorCode::kUsage,
               {"unknown key num_layers in bad.toml:1; did you mean num-layers?"});
  expect_error(pretrain(1, Flags("--config none.toml")), ErrorCode::kUsage, {"--config none.toml: cannot read"});
}

// A default given by hand is the default left out, and each setting does something.
TEST_F(Programs, DefaultsAndClipping) {
  const auto run = [&](const std::string& name, const Flags& flags) {
    expect_success(pretrain(1, flags.with("--metrics-file " + name + " --check-weight-hash")));
    return steps_of(name);
  };
  const std::vector<StepLine> plain = run("plain", tiny());
  const Flags given = tiny().with(
      "--clip-grad 1.0 --optimizer adam --adam-beta1 0.9 --adam-beta2 0.999 --adam-eps 1e-8 --weight-decay 0.01 "
      "--lr-decay-style linear --min-lr 0 --lr-warmup-iters 0 --seed 1234 --pipeline-schedule 1f1b --norm-epsilon 1e-5 "
      "--init-method-std 0.02 --make-vocab-size-divisible-by 128 --tensor-model-parallel-size 1 --data-order shuffle "
      "--ffn-hidden-size 128 --activation gelu-tanh --tokenizer-type ByteTokenizer --max-position-embeddings 16");
  EXPECT_EQ(run("given", given), plain);
  const Flags sgd = tiny().with("--optimizer sgd --lr 1 --lr-decay-style constant --weight-decay 0 --train-iters 2");
  const std::vector<StepLine> one = run("one", sgd), small = run("small", sgd.with("--clip-grad 0.01")),
                              off = run("off", sgd.with("--clip-grad 0"));
  EXPECT_GT(one[0].grad_norm.get<double>(), 1.0);
  EXPECT_EQ(small[0].grad_norm, one[0].grad_norm);
  EXPECT_EQ(off[0].grad_norm, one[0].grad_norm);
  EXPECT_NE(small[0].hashes, one[0].hashes);
  EXPECT_NE(off[0].hashes, one[0].hashes);
}

TEST_F(Programs, HuggingFaceOutAndIn) {
  const Flags flags = tiny().with("--eval-interval 6 --eval-iters 2 --lr-decay-style constant");
  const Ended saved = pretrain(4, flags.with(kGrid221).with("--save-hf hf"));
  expect_success(saved);
  EXPECT_TRUE(fs::exists(path("hf/config.json")));
  // A step too small to be seen, so that the validation behind it is that of the weights loaded.
  const Flags load = Flags(
      "--mock-data --load-hf hf --micro-batch-size 2 --global-batch-size 8 --train-iters 1 --lr 1e-30 --eval-interval "
      "1 "
      "--eval-iters 2");
  const double expected = validation_loss(saved);
  for (const auto& [num_ranks, grid] : std::map<int, std::string>{{1, ""}, {2, kGrid212}, {4, kGrid122}}) {
    const Ended loaded = pretrain(num_ranks, load.with(grid));
    expect_success(loaded);
    EXPECT_NEAR(validation_loss(loaded) / expected, 1, 2e-6) << grid;
    EXPECT_EQ(count(loaded.err, "weights from --load-hf hf"), 1);
  }
  const auto expect_contradiction = [&](const std::string& flag, const std::string& has) {
    expect_error(pretrain(2, load.with(flag)), ErrorCode::kUsage,
                 {flag + " contradicts --load-hf hf: its config.json says " + has});
  };
  // With NullTokenizer the id that ends documents is in the model and not in --vocab-size.
  expect_success(pretrain(1, load.with("--tokenizer-type NullTokenizer --vocab-size 256")));
  expect_contradiction("--num-layers 3", "4");
  expect_contradiction("--hidden-size 64", "32");
  expect_contradiction("--vocab-size 300", "257");
  expect_error(pretrain(2, load.with("--load-hf nothing")), ErrorCode::kCheckpoint, {"nothing"});
  expect_error(
      pretrain(1, load.with("--seq-length 32")), ErrorCode::kUsage,
      {"--seq-length 32 is longer than max-position-embeddings 16", "max-position-embeddings: in hf/config.json"});
}

TEST_F(Programs, SampleText) {
  const std::string corpus = make_corpus("corpus", 3000);
  expect_success(
      pretrain(4, tiny().without("mock-data").with(kGrid221).with("--train-iters 30 --save ck --data-path " + corpus)));
  const std::string flags = "--load ck --num-bytes 60 --prompt stone --seed 5";
  const Ended first = sample(flags);
  expect_success(first);
  EXPECT_TRUE(first.out.starts_with("stone")) << first.out;
  EXPECT_EQ(first.err, "");
  EXPECT_EQ(sample(flags).out, first.out) << "the same seed writes the same text";
  EXPECT_NE(sample("--load ck --num-bytes 60 --prompt stone --seed 6").out, first.out);
  const std::string greedy = "--load ck --num-bytes 20 --temperature 0 --seed ";
  EXPECT_EQ(sample(greedy + "1").out, sample(greedy + "2").out);

  expect_error(sample("--load nothing"), ErrorCode::kCheckpoint, {"--load nothing: no whole checkpoint there"});
  expect_error(sample("--load ck --ckpt-step 7"), ErrorCode::kCheckpoint, {"ck/iter_0000007"});
  expect_error(sample("--num-bytes 5"), ErrorCode::kUsage, {"--load is required", "sample_gpt --help lists the flags"});
  expect_error(sample("--load ck --temprature 1"), ErrorCode::kUsage, {"--temprature"});
  expect_error(sample("--load ck --temperature -1"), ErrorCode::kUsage, {"--temperature"});
  Command two = program(RUN_RANKS, {"2", SAMPLE_GPT, "--load", "ck"});
  expect_error(run_command(two), ErrorCode::kUsage, {"sample_gpt runs on one rank, 2 were started"});
}

TEST_F(Programs, RunRanksScript) {
  const auto script = [&](const std::vector<std::string>& words) { return run_command(program(RUN_RANKS, words)); };
  EXPECT_EQ(script({}).exit_code, 2);
  EXPECT_EQ(script({"zero", PRETRAIN_GPT}).exit_code, 2);
  const Ended missing = script({"2", path("no_such_program")});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no_such_program was not found"));
}

}  // namespace
}  // namespace ashlar::system_test
