// Wrong flags, grids and launches: refused before any training, with the user's own flag and the nearest legal value.
#include <sys/stat.h>

#include <fstream>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

class BadStart : public SystemTest {
 protected:
  // The run is refused, says these texts, and leaves the disk as it was.
  void expect_refused(int num_ranks, const Flags& flags, const std::vector<std::string>& texts,
                      ErrorCode code = ErrorCode::kUsage) {
    SCOPED_TRACE(flags.text());
    const Snapshot before = snapshot();
    expect_error(pretrain(num_ranks, flags.with("--save out --metrics-file metrics.jsonl")), code, texts);
    EXPECT_EQ(snapshot(), before);
  }
  // Each rank with flags of its own.
  Command two_ranks(const Flags& first, const Flags& second) const {
    Command command = program("mpirun", {"--oversubscribe", "--bind-to", "none", "--quiet"});
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
      command.environment[name] = "1";
    }
    for (const Flags& flags : {first, second}) {
      const std::vector<std::string> words = flags.words();
      command.words.insert(command.words.end(), {"-np", "1", PRETRAIN_GPT});
      command.words.insert(command.words.end(), words.begin(), words.end());
      command.words.push_back(":");
    }
    command.words.pop_back();
    return command;
  }
};

TEST_F(BadStart, WorldIsNoMultipleOfTheGrid) {
  expect_refused(3, tiny().with(kGrid221),
                 {"the world has 3 ranks", "--tensor-model-parallel-size 2 x --pipeline-model-parallel-size 2 = 4",
                  "nearest legal: mpirun -np 4"});
}

TEST_F(BadStart, GridWithoutMpirun) {
  expect_refused(1, tiny().with(kGrid221), {"the world has 1 rank,", "= 4", "nearest legal: mpirun -np 4"});
}

TEST_F(BadStart, SizesThatDoNotDivide) {
  expect_refused(
      1, tiny().with("--hidden-size 33"),
      {"--hidden-size 33 is not a multiple of --num-attention-heads 4", "nearest legal --hidden-size: 32 or 36"});
  expect_refused(2, tiny().with(kGrid212).with("--num-attention-heads 3 --hidden-size 36"),
                 {"--num-attention-heads 3 cannot be shared by --tensor-model-parallel-size 2",
                  "nearest legal --num-attention-heads: 2 or 4"});
  expect_refused(2, tiny().with(kGrid212).with("--ffn-hidden-size 63"),
                 {"--ffn-hidden-size 63 cannot be shared", "nearest legal --ffn-hidden-size: 62 or 64"});
  expect_refused(
      1, tiny().with("--global-batch-size 7"),
      {"--global-batch-size 7 is no multiple of --micro-batch-size 2", "nearest legal --global-batch-size: 6 or 8"});
  expect_refused(4, tiny().with(kGrid122).with("--global-batch-size 6"),
                 {"--global-batch-size 6 is no multiple of --micro-batch-size 2 x data size 2 = 4",
                  "nearest legal --global-batch-size: 4 or 8"});
  expect_refused(1, tiny().with("--max-position-embeddings 8"),
                 {"--seq-length 16 is longer than --max-position-embeddings 8", "nearest legal --seq-length: 8"});
}

TEST_F(BadStart, SharingAmongDataRanks) {
  expect_refused(4, tiny().with("--zero-stage 3 --data-parallel-sharding-strategy optim_grads"),
                 {"--zero-stage 3 and --data-parallel-sharding-strategy optim_grads contradict each other"});
  expect_refused(4, tiny().with("--zero-stage 2 --num-distributed-optimizer-instances 3"),
                 {"--num-distributed-optimizer-instances 3 does not divide the data size 4", "nearest legal value: 2"});
  expect_refused(2, tiny().with("--grad-reduce often"), {"--grad-reduce", "step", "micro-batch", "often"});
}

TEST_F(BadStart, StagesWithoutLayers) {
  expect_refused(4, tiny().with("--pipeline-model-parallel-size 4 --num-layers 3"),
                 {"--pipeline-model-parallel-size 4 has more stages than --num-layers 3 has layers",
                  "nearest legal --pipeline-model-parallel-size: 3"});
  expect_refused(2, tiny().with(kGrid122).with("--decoder-first-pipeline-num-layers 4"),
                 {"--decoder-first-pipeline-num-layers 4", "--num-layers 4"});
}

TEST_F(BadStart, VocabularyAndLengthOfTheRun) {
  expect_refused(1, tiny().with("--vocab-size 100"),
                 {"--vocab-size 100 is too small for --tokenizer-type ByteTokenizer", "nearest legal value: 257"});
  expect_refused(1, tiny().with("--tokenizer-type NullTokenizer"), {"NullTokenizer needs --vocab-size"});
  expect_refused(1, tiny().with("--lr-warmup-iters 6"), {"warm-up of 6 steps", "nearest legal --lr-warmup-iters: 5"});
  expect_refused(1, tiny().without("train-iters").with("--train-samples 3"),
                 {"--train-samples 3 is less than one step of --global-batch-size 8", "nearest legal value: 8"});
  expect_refused(1, tiny().with("--min-lr 0.1"), {"--min-lr 0.1 is above --lr 0.01", "nearest legal value: 0.01"});
}

TEST_F(BadStart, UnknownMisspeltAndDeadFlags) {
  expect_refused(1, tiny().with("--hidden-sise 4"), {"unknown flag --hidden-sise; did you mean --hidden-size?"});
  expect_refused(2, tiny().with("--warp-drive"), {"unknown flag --warp-drive"});
  expect_refused(1, tiny().with("--lr 1e-2x"), {"--lr expects a number above 0, got '1e-2x'"});
  expect_refused(1, tiny().with("--optimizer adma"), {"--optimizer expects one of adam, sgd", "did you mean adam?"});
  expect_refused(1, tiny().with("--model-parallel-size 2"),
                 {"--model-parallel-size no longer exists", "--tensor-model-parallel-size"});
  expect_refused(1, tiny().with("--checkpoint-activations"), {"--checkpoint-activations no longer exists"});
  expect_refused(1, tiny().with("--num-experts 4"), {"--num-experts 4 is not supported yet"});
  expect_refused(1, tiny().with("--hidden-dropout 1"),
                 {"--hidden-dropout expects a number of at least 0 and below 1, got '1'"});
  expect_refused(1, tiny().with("--world-size 4"), {"--world-size 4 is for --dry-run", "mpirun -np 4"});
}

TEST_F(BadStart, MoreMemoryThanItsLimit) {
  expect_refused(2, tiny().with("--memory-limit-gb 0.0001"),
                 {"--memory-limit-gb 0.0001: a rank of stage 0 needs", "optimizer state", "largest item: "});
  expect_refused(1, tiny().with("--memory-limit-gb 0"), {"--memory-limit-gb expects a number above 0"});
  expect_refused(1, tiny().with("--dry-run --mfu 0.4"), {"the days of a training need --peak-tflops X and --mfu X"});
  expect_refused(1, tiny().with("--dry-run --peak-tflops 312 --mfu 40"),
                 {"--mfu expects a number", "nearest legal value: 1"});
}

TEST_F(BadStart, FaultsOnRanksThatDoNotExist) {
  expect_refused(2, tiny().with("--test-nan rank=2,step=1"),
                 {"--test-nan rank=2,step=1: there is no rank 2 among 2 ranks; nearest legal value: rank=1"});
  expect_refused(1, tiny().with("--test-hang rank=0,step=1,point=lunch"),
                 {"--test-hang expects rank=R,step=S,point=P"});
}

// What cannot come would look as if the run had stood it.
TEST_F(BadStart, FaultsThatCannotCome) {
  expect_refused(2, tiny().with("--test-hang rank=0,step=1,point=receive"),
                 {"with --pipeline-model-parallel-size 1 no rank receives anything", "point=all-reduce"});
  expect_refused(2, tiny().with("--test-nan rank=1,step=7"),
                 {"--test-nan rank=1,step=7: the run ends with step 6", "nearest legal value: step=6"});
  expect_refused(2, tiny().with("--test-offload-fault foo"),
                 {"--test-offload-fault expects rank=R,bytes=N[,file=F], got 'foo'"});
  expect_error(pretrain(2, tiny().with("--test-write-fault rank=1,bytes=9")), ErrorCode::kUsage,
               {"--test-write-fault rank=1,bytes=9 needs --save DIR"});
  const Ended ended = pretrain(2, tiny().with("--save ck --test-write-fault rank=1,bytes=100000000"));
  expect_success(ended);
  EXPECT_EQ(count(ended.err, "--test-write-fault rank=1,bytes=100000000 did not come"), 1) << ended.err;
}

TEST_F(BadStart, AConfigFileIsNamed) {
  std::ofstream(path("run.toml")) << "zero-stage = 3\ndata-parallel-sharding-strategy = \"optim\"\n";
  expect_refused(2, tiny().with("--config run.toml"),
                 {"zero-stage 3 and data-parallel-sharding-strategy optim contradict each other",
                  "(data-parallel-sharding-strategy, zero-stage: in run.toml)"});
  const Ended ended = pretrain(2, tiny().with("--config run.toml --use-distributed-optimizer"));
  expect_success(ended);
  EXPECT_EQ(count(ended.err, "zero-stage = 3 in run.toml is left out: the command line has "), 1) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("ZeRO-1 over 2 data ranks"));
  std::ofstream(path("run.toml")) << "recompute-granularity = \"selective\"\nrecompute-modules = []\n";
  expect_refused(2, tiny().with("--config run.toml"),
                 {"recompute-modules in run.toml:2: needs a value (some of core_attn, layernorm, mlp_act)"});
  std::ofstream(path("run.toml")) << "optimizer-cpu-offload = true\n";
  expect_error(pretrain(2, tiny().with("--config run.toml --distributed-backend mpi")), ErrorCode::kUsage,
               {"optimizer-cpu-offload has no use here", "(optimizer-cpu-offload: in run.toml)"});
  std::ofstream(path("run.toml")) << "load = \"absent\"\n";
  expect_error(pretrain(2, tiny().with("--config run.toml")), ErrorCode::kCheckpoint,
               {"load absent: no whole checkpoint there", "(load: in run.toml)"});
}

TEST_F(BadStart, InterleavingIsRefusedByName) {
  expect_refused(4,
                 tiny().with("--num-layers 8 --pipeline-model-parallel-size 4 --global-batch-size 12 "
                             "--num-layers-per-virtual-pipeline-stage 1"),
                 {"--num-layers-per-virtual-pipeline-stage 1 is not supported yet"});
}

TEST_F(BadStart, EverythingMissingIsListedAtOnce) {
  expect_error(pretrain(1, Flags("--mock-data")), ErrorCode::kUsage,
               {"--num-layers is required", "--hidden-size is required", "--micro-batch-size is required",
                "--lr is required", "--train-iters (or --train-samples) is required"});
  expect_error(pretrain(1, Flags("")), ErrorCode::kUsage, {"--help begins with examples"});
  expect_error(pretrain(1, tiny().without("mock-data")), ErrorCode::kUsage, {"no data: give --data-path PREFIX"});
}

TEST_F(BadStart, FlagsWithoutEffectAreSaidInOneLine) {
  const Ended ended =
      pretrain(2, tiny().with("--train-iters 1 --use-flash-attn --transformer-impl local --clip-grad 1"));
  expect_success(ended);
  EXPECT_EQ(count(ended.err, "accepted without effect"), 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("--use-flash-attn"), HasSubstr("--transformer-impl")));
}

TEST_F(BadStart, RanksWithDifferentFlags) {
  expect_error(run_command(two_ranks(tiny(), tiny().with("--clip-grad 0.5"))), ErrorCode::kUsage,
               {"ranks were given different settings: --clip-grad is 1.0 on rank 0 and 0.5 on rank 1"});
  expect_error(run_command(two_ranks(Flags("--help"), tiny())), ErrorCode::kUsage,
               {"--help or --help-flags was given to some ranks only: to rank 0, not to rank 1"});
  expect_error(run_command(two_ranks(tiny(), Flags("--help-flags"))), ErrorCode::kUsage,
               {"--help or --help-flags was given to some ranks only: to rank 1, not to rank 0"});
  EXPECT_TRUE(snapshot().empty());
}

// A rank that never comes to the first agreement: it waits for the other end of a pipe.
TEST_F(BadStart, ARankThatIsMissingFromTheStart) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const Flags waits = tiny().with("--distributed-timeout-minutes 1s");
  const Ended ended = run_command(two_ranks(waits, waits.with("--config pipe")));
  EXPECT_FALSE(ended.timed_out);
  EXPECT_EQ(ended.exit_code, exit_code(ErrorCode::kTimeout)) << ended.all();
  EXPECT_THAT(ended.err, AllOf(HasSubstr("rank 0 waited 1.0 s"), HasSubstr("(see --distributed-timeout-minutes)")));
  EXPECT_EQ(ended.ranks_left, 0);
}

// Ranks of a launcher that the MPI library does not know: each would be rank 0 of 1 and write the same files.
TEST_F(BadStart, LonelyProcesses) {
  const std::map<std::string, std::map<std::string, std::string>> launches = {
      {"SLURM_NTASKS=2", {{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}}},
      {"OMPI_COMM_WORLD_SIZE=2", {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}}},
      {"PMI_SIZE=2", {{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}}}};
  for (const Flags& flags : {tiny(), tiny().with(kGrid212)}) {
    for (const auto& [name, variables] : launches) {
      auto environment = variables;
      environment["OMPI_ALLOW_RUN_AS_ROOT"] = environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
      Process first(pretrain_command(1, flags.with("--save out"), environment));
      Process second(pretrain_command(1, flags.with("--save out"), environment));
      for (Process* process : {&first, &second}) {
        expect_error(process->wait(), ErrorCode::kUsage,
                     {name + " announces 2 processes, but this process found 1", "mpirun -np 2"});
      }
      EXPECT_TRUE(snapshot().empty());
    }
  }
}

TEST_F(BadStart, AnAllocationAloneIsNoLaunch) {
  expect_success(pretrain(1, tiny().with("--train-iters 1"), {{"SLURM_NTASKS", "2"}}));
}

}  // namespace
}  // namespace ashlar::system_test
