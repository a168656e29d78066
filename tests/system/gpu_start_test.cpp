// Starting on GPUs, with real processes and stand-in GPUs: the situations in which a job cannot start end on all ranks
// within seconds, with exit code 2 and one message that names host, ranks, value and remedy.
#include "tests/system/system_test.h"

#include <chrono>

namespace ashlar::system_test {
namespace {

using Environment = std::map<std::string, std::string>;

class GpuStart : public SystemTest {
 protected:
  Ended start(int num_ranks, const std::string& flags, const Environment& environment = {}) {
    return pretrain(num_ranks, tiny().with("--train-iters 1").with(flags), environment);
  }
  // `prepare` is bash that runs in each rank before the program.
  Ended start_prepared(int num_ranks, const std::string& flags, const std::string& prepare) {
    Command command = program("bash", {"-c", prepare + "; exec \"$@\"", "rank", PRETRAIN_GPT});
    for (const std::string& word : tiny().with("--train-iters 1").with(flags).words()) {
      command.words.push_back(word);
    }
    command.words.insert(command.words.begin(), {RUN_RANKS, std::to_string(num_ranks)});
    return run_command(command);
  }
  void expect_refused(const Ended& ended, const std::vector<std::string>& texts) {
    expect_error(ended, ErrorCode::kUsage, texts);
    // From the test's start to the job's end, mpirun included.
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(), 10.0);
    began_ = std::chrono::steady_clock::now();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

TEST_F(GpuStart, NoDriver) {
  expect_refused(start(2, "--device cuda --distributed-backend staged", {{"ASHLAR_STANDIN_DRIVER", "0"}}),
                 {"--device cuda: the ranks cannot start", "host ", "(ranks 0-1): no NVIDIA driver loaded",
                  "nvidia-smi", "or use --device cpu"});
}

TEST_F(GpuStart, TooFewGpus) {
  expect_refused(start(3, "--device cuda --global-batch-size 6", {{"ASHLAR_STANDIN_GPUS", "2"}}),
                 {"(ranks 0-2): 3 ranks but 2 visible GPUs", "CUDA_VISIBLE_DEVICES is unset", "ppr:2:node",
                  "--distributed-backend staged"});
}

TEST_F(GpuStart, TwoRanksOnOneGpu) {
  expect_refused(
      start(2, "--device cuda", {{"ASHLAR_STANDIN_GPUS", "1"}}),
      {"(ranks 0-1): these ranks use the same GPU GPU-", "rank 1 took device 0 of 1", "--distributed-backend staged"});
}

TEST_F(GpuStart, ADriverOfAnotherVersion) {
  expect_refused(start(2, "--device cuda --distributed-backend staged", {{"ASHLAR_STANDIN_DRIVER", "12000"}}),
                 {"(ranks 0-1): the NVIDIA driver is too old: it serves CUDA 12.0", "CUDA 13 needs R580"});
}

TEST_F(GpuStart, TwoVersionsOfNccl) {
  expect_refused(start_prepared(2, "--device cuda --distributed-backend nccl",
                                "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then export ASHLAR_STANDIN_NCCL_VERSION=29999; fi"),
                 {"different versions of NCCL", "NCCL 2.99.99 on host", "(rank 1)", "LD_LIBRARY_PATH"});
}

TEST_F(GpuStart, AnEnvironmentThatDiffers) {
  expect_refused(start_prepared(2, "--device cuda --distributed-backend staged",
                                "export NCCL_ALGO=algorithm$OMPI_COMM_WORLD_RANK"),
                 {"the environment differs between ranks: NCCL_ALGO is 'algorithm0' on rank 0, 'algorithm1' on rank 1",
                  "-x NCCL_ALGO"});
}

TEST_F(GpuStart, SingleJobsInsteadOfOne) {
  const Ended ended = start(1, "--device cuda", {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  expect_refused(ended, {"SLURM_NTASKS=4 announces 4 processes, but this process found 1", "train alone"});
}

TEST_F(GpuStart, AWorldThatIsNoMultipleOfTheGrid) {
  expect_refused(start(3, "--device cuda --tensor-model-parallel-size 2"),
                 {"the world has 3 ranks", "nearest legal: mpirun -np 2 or mpirun -np 4"});
}

TEST_F(GpuStart, MoreThanTheMemoryOfAGpu) {
  expect_refused(start(2, "--device cuda --distributed-backend staged", {{"ASHLAR_STANDIN_MIB", "512"}}),
                 {"(rank 0): 536.9 MB are free on the GPU GPU-", "1.1 GB a rank for CUDA"});
}

TEST_F(GpuStart, SizesThatKernelsDoNotTake) {
  expect_refused(start(2, "--device cuda --bf16 --gemm own --hidden-size 36"),
                 {"--gemm own: rows of our matrix products are multiples of 8 elements, and --hidden-size is 36",
                  "nearest multiple: 40", "--gemm auto"});
  expect_refused(start(2, "--device cuda --hidden-size 12296 --num-attention-heads 1537"),
                 {"--hidden-size 12296: LayerNorm on a GPU takes at most 12288"});
}

TEST_F(GpuStart, ContradictionsNameBothFlags) {
  expect_refused(start(1, "--device cuda --distributed-backend mpi"),
                 {"--device cuda and --distributed-backend mpi contradict"});
  expect_refused(start(1, "--device cpu --distributed-backend staged"),
                 {"--device cpu and --distributed-backend staged contradict"});
}

// What a user without GPUs sees: one line that says so, and the run.
TEST_F(GpuStart, AutoTakesTheCpuAndSaysWhy) {
  const Ended ended = start(2, "--device auto", {{"ASHLAR_STANDIN_DRIVER", "0"}});
  expect_success(ended);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("device: CPU, because"), HasSubstr("no NVIDIA driver loaded")));
  EXPECT_EQ(count(ended.err, "device: CPU"), 1);
  const Ended with_gemm = start(1, "--device auto --gemm cublaslt", {{"ASHLAR_STANDIN_DRIVER", "0"}});
  expect_success(with_gemm);
  EXPECT_THAT(with_gemm.err, HasSubstr("--gemm and --allow-tf32 have no use on a CPU"));
  const Ended asked = start(1, "--device cpu");
  expect_success(asked);
  EXPECT_THAT(asked.err, HasSubstr("device: CPU, as --device cpu asks"));
}

// Who asks for GPUs by the backend is not given the CPU.
TEST_F(GpuStart, AutoWithABackendOfGpusNeedsThem) {
  expect_refused(start(1, "--distributed-backend staged", {{"ASHLAR_STANDIN_DRIVER", "0"}}),
                 {"--distributed-backend staged: the ranks cannot start", "no NVIDIA driver loaded"});
}

}  // namespace
}  // namespace ashlar::system_test
