// Real processes on grids: every grid trains what one rank trains, a repetition gives the same bits, and so does the
// other schedule.
#include <cmath>

#include "tests/system/system_test.h"

namespace ashlar::system_test {
namespace {

class Equality : public SystemTest {
 protected:
  std::vector<StepLine> run(int num_ranks, const Flags& flags,
                            const std::map<std::string, std::string>& variables = {}) {
    const std::string name = "run" + std::to_string(num_runs_++) + ".jsonl";
    expect_success(pretrain(num_ranks, flags.with("--metrics-file " + name), variables));
    return steps_of(name);
  }
  static void expect_near(const std::vector<StepLine>& steps, const std::vector<StepLine>& expected) {
    ASSERT_EQ(steps.size(), expected.size());
    for (size_t at = 0; at < steps.size(); ++at) {
      EXPECT_NEAR(steps[at].loss.get<double>() / expected[at].loss.get<double>(), 1, 1e-5) << "step " << at + 1;
      EXPECT_NEAR(steps[at].grad_norm.get<double>() / expected[at].grad_norm.get<double>(), 1, 1e-4)
          << "step " << at + 1;
    }
  }

  int num_runs_ = 0;
};

struct GridCase {
  int num_ranks;
  const char* flags;
};

TEST_F(Equality, VerifyLayout) {
  const GridCase cases[] = {
      {2, "--tensor-model-parallel-size 2 --pipeline-schedule gpipe"},
      {2, "--pipeline-model-parallel-size 2 --pipeline-schedule 1f1b"},
      {2, "--pipeline-schedule 1f1b --optimizer sgd --clip-grad 0 --lr 0.1"},
      {4, "--tensor-model-parallel-size 4 --pipeline-schedule gpipe --untie-embeddings-and-output-weights"},
      {4, "--pipeline-model-parallel-size 4 --pipeline-schedule gpipe --num-layers 6"},
      {4, "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1 --use-tp-pp-dp-mapping"},
      {2, "--tensor-model-parallel-size 2 --sequence-parallel --optimizer sgd --clip-grad 0 --lr 0.1"},
      {4, "--tensor-model-parallel-size 4 --sequence-parallel --hidden-dropout 0.1"},
      {8, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel"},
      {8, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --pipeline-schedule 1f1b"},
      {8, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --pipeline-schedule gpipe"},
      {4, "--pipeline-model-parallel-size 2 --use-megatron-fsdp --overlap-param-gather --overlap-grad-reduce"},
      {4, "--zero-stage 2 --num-distributed-optimizer-instances 2"}};
  for (const GridCase& grid : cases) {
    SCOPED_TRACE(grid.flags);
    const Ended ended = pretrain(grid.num_ranks, tiny().with("--verify-layout 5").with(grid.flags));
    expect_success(ended);
    EXPECT_THAT(ended.out, AllOf(HasSubstr("layout verified: "), HasSubstr("equals one rank over 5 steps"),
                                 HasSubstr("replicated tensors are bit-equal on all their holders")));
  }
}

// 6 layers on 4 stages, 5 on 2, 10 on 3: uneven, and none is lost.
TEST_F(Equality, UnevenStages) {
  const GridCase cases[] = {{4, "--num-layers 6 --pipeline-model-parallel-size 4"},
                            {2, "--num-layers 5 --pipeline-model-parallel-size 2"},
                            {3, "--num-layers 10 --pipeline-model-parallel-size 3"}};
  for (const GridCase& grid : cases) {
    SCOPED_TRACE(grid.flags);
    const Flags flags = tiny().with(grid.flags).with("--train-iters 5 --optimizer sgd --lr 0.1 --clip-grad 0");
    expect_near(run(grid.num_ranks, flags), run(1, flags.with("--pipeline-model-parallel-size 1")));
  }
}

// The vocabulary is no multiple of the tensor size, with and without padding, and the data uses the highest id.
TEST_F(Equality, UnevenVocabulary) {
  for (const char* vocabulary : {"64", "66"}) {  // NullTokenizer adds one id: 65 and 67
    for (const char* multiple : {"1", "128"}) {
      const Flags flags = tiny().with(
          "--optimizer sgd --lr 0.1 --clip-grad 0 --train-iters 20 --init-method-std 0.004 --tokenizer-type "
          "NullTokenizer --vocab-size " +
          std::string(vocabulary) + " --make-vocab-size-divisible-by " + multiple);
      const std::vector<StepLine> one = run(1, flags);
      EXPECT_NEAR(one[0].loss.get<double>(), std::log(std::stod(vocabulary) + 1), 0.006);
      expect_near(run(2, flags.with("--tensor-model-parallel-size 2")), one);
      if (std::string(multiple) == "1") {
        expect_near(run(4, flags.with("--tensor-model-parallel-size 4")), one);
      }
    }
  }
}

TEST_F(Equality, RepetitionAndSchedulesAreBitEqual) {
  const Flags flags = tiny().with(kGrid221).with("--check-weight-hash");
  const std::vector<StepLine> first = run(8, flags);
  ASSERT_EQ(first.size(), 6u);
  EXPECT_EQ(run(8, flags), first);
  EXPECT_EQ(run(8, flags.with("--pipeline-schedule gpipe")), first);
  EXPECT_EQ(run(8, flags, {{"ASHLAR_MPI_TRANSPORT", "p2p"}}), first);
  for (const StepLine& step : first) {
    // Tensor 2 x data 2 x pipeline 2, tensor fastest: ranks r and r + 2 are data replicas.
    ASSERT_EQ(step.hashes.size(), 8u);
    for (const size_t rank : {0, 1, 4, 5}) {
      EXPECT_EQ(step.hashes[rank], step.hashes[rank + 2]);
    }
  }
}

// Whatever data ranks share out: the same losses, norms, weights and files; and a tied model's exported files hold all
// that a rank on its own needs.
TEST_F(Equality, StagesOfSharing) {
  const Flags flags = tiny().with(kGrid122).with(
      "--grad-reduce micro-batch --check-weight-hash --eval-interval 6 --eval-iters 2 --lr-decay-style constant");
  std::vector<StepLine> expected;
  Snapshot files;
  double validation = 0;
  for (const std::string stage : {"0", "1", "2", "3"}) {
    const Ended ended = pretrain(
        4, flags.with("--zero-stage " + stage + " --metrics-file stage" + stage + ".jsonl --save-hf hf" + stage));
    expect_success(ended);
    const std::vector<StepLine> steps = steps_of("stage" + stage + ".jsonl");
    const Snapshot exported = snapshot("hf" + stage);
    ASSERT_EQ(steps.size(), 6u);
    EXPECT_GT(exported.size(), 1u);
    if (stage == "0") {
      expected = steps;
      files = exported;
      validation = validation_loss(ended);
    }
    EXPECT_EQ(steps, expected) << "stage " << stage;
    EXPECT_EQ(exported, files) << "stage " << stage;
    EXPECT_EQ(validation_loss(ended), validation) << "stage " << stage;
  }
  const Ended loaded =
      pretrain(1, Flags("--mock-data --load-hf hf3 --micro-batch-size 2 --global-batch-size 8 --train-iters 1 "
                        "--lr 1e-30 --eval-interval 1 --eval-iters 2"));
  expect_success(loaded);
  EXPECT_NEAR(validation_loss(loaded) / validation, 1, 2e-6);
}

// Messages far beyond the eager limit: both ends must be posted before either can go on.
TEST_F(Equality, MessagesByRendezvous) {
  const Flags flags = tiny().with(
      "--hidden-size 256 --seq-length 128 --micro-batch-size 4 --global-batch-size 32 --train-iters 1 --lr 1e-3");
  const std::vector<StepLine> one = run(1, flags);
  std::vector<StepLine> first[2];
  for (int repetition = 0; repetition < 3; ++repetition) {
    for (const int stages : {2, 4}) {
      const std::vector<StepLine> steps =
          run(stages, flags.with("--pipeline-model-parallel-size " + std::to_string(stages)),
              {{"RUN_RANKS_MPI_ARGS", "--mca btl_vader_eager_limit 128 --mca btl_vader_rndv_eager_limit 128"}});
      expect_near(steps, one);
      std::vector<StepLine>& before = first[stages == 4];
      EXPECT_TRUE(before.empty() || steps == before);
      before = steps;
    }
  }
}

}  // namespace
}  // namespace ashlar::system_test
